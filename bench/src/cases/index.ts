// Every case, in the order they run.
import type { BenchCase } from '../harness.ts';
import { branch } from './branch.ts';
import { branchLoad } from './branch-load.ts';
import { create } from './create.ts';
import { density } from './density.ts';
import { files } from './files.ts';
import { functions } from './functions.ts';
import { gateway } from './gateway.ts';
import { me } from './me.ts';
import { pointInTime } from './point-in-time.ts';
import { sql } from './sql.ts';
import { wake } from './wake.ts';

export const cases: BenchCase[] = [
  me,
  create,
  wake,
  gateway,
  density,
  branch,
  branchLoad,
  pointInTime,
  sql,
  files,
  functions,
];
