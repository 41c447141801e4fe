// Every case, in the order they run.
import type { BenchCase } from '../harness.ts';
import { create } from './create.ts';
import { density } from './density.ts';
import { me } from './me.ts';
import { sql } from './sql.ts';
import { wake } from './wake.ts';

export const cases: BenchCase[] = [me, create, wake, density, sql];
