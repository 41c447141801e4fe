// Every case, in the order they run.
import type { BenchCase } from '../harness.ts';
import { create } from './create.ts';
import { density } from './density.ts';
import { files } from './files.ts';
import { functions } from './functions.ts';
import { me } from './me.ts';
import { sql } from './sql.ts';
import { wake } from './wake.ts';

export const cases: BenchCase[] = [me, create, wake, density, sql, files, functions];
