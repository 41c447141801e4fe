// Every case, in the order they run.
import type { BenchCase } from '../harness.ts';
import { me } from './me.ts';

export const cases: BenchCase[] = [me];
