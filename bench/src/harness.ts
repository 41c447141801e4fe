// The measuring part: subjects (the service and its peers) take turns in one run on one machine,
// so that noise hits all of them alike, and are compared as ratios.
import { readFileSync } from 'node:fs';

export interface Row {
  /** What was measured, of which subject. */
  what: string;
  p50?: number;
  p99?: number;
  /** Operations a second. */
  perSecond?: number;
  /** MB */
  memory?: number;
  /** Anything else worth a word. */
  note?: string;
  /** `value` compared to a limit that an issue or the docs promise. */
  target?: Target;
}

export interface Target {
  /** In words: "p50 / peer p50". */
  of: string;
  value: number;
  /** One of the two. */
  atMost?: number;
  atLeast?: number;
}

export interface BenchCase {
  name: string;
  about: string;
  run(context: BenchContext): Promise<Row[]>;
}

export interface BenchContext {
  /** Fewer rounds, to see that a case works. */
  quick: boolean;
  progress(message: string): void;
}

export interface Timing {
  p50: number;
  p99: number;
  mean: number;
  count: number;
}

export function summarize(durationsMs: number[]): Timing {
  const sorted = durationsMs.toSorted((a, b) => a - b);
  const at = (share: number) =>
    sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0;
  return {
    p50: at(0.5),
    p99: at(0.99),
    mean: sorted.reduce((sum, value) => sum + value, 0) / Math.max(1, sorted.length),
    count: sorted.length,
  };
}

export async function timed(work: () => Promise<unknown>): Promise<number> {
  const startedAt = performance.now();
  await work();
  return performance.now() - startedAt;
}

/** One call of each subject in turn, `rounds` times; the order flips every round. */
export async function alternate<K extends string>(
  subjects: Record<K, (round: number) => Promise<unknown>>,
  options: { rounds: number; warmup?: number; context: BenchContext },
): Promise<Record<K, Timing>> {
  const names = Object.keys(subjects) as K[];
  const durations = Object.fromEntries(names.map((name) => [name, [] as number[]])) as Record<
    K,
    number[]
  >;
  const warmup = options.warmup ?? Math.min(20, Math.ceil(options.rounds / 10));
  for (let round = -warmup; round < options.rounds; round++) {
    const order = round % 2 === 0 ? names : names.toReversed();
    for (const name of order) {
      const duration = await timed(() => subjects[name](round));
      if (round >= 0) durations[name].push(duration);
    }
    if (round % 10 === 0) options.context.progress(`${Math.max(0, round)}/${options.rounds}`);
  }
  return Object.fromEntries(names.map((name) => [name, summarize(durations[name])])) as Record<
    K,
    Timing
  >;
}

/** Operations a second of each subject: `slices` slices of `sliceMs` each, taking turns. */
export async function throughput<K extends string>(
  subjects: Record<K, (client: number) => Promise<unknown>>,
  options: { clients: number; sliceMs?: number; slices?: number; context: BenchContext },
): Promise<Record<K, { perSecond: number; timing: Timing }>> {
  const names = Object.keys(subjects) as K[];
  const slices = options.context.quick ? 1 : (options.slices ?? 4);
  const sliceMs = options.context.quick ? 500 : (options.sliceMs ?? 2000);
  const done = Object.fromEntries(
    names.map((name) => [name, { count: 0, ms: 0, durations: [] as number[] }]),
  ) as Record<K, { count: number; ms: number; durations: number[] }>;
  for (let slice = -1; slice < slices; slice++)
    for (const name of slice % 2 === 0 ? names : names.toReversed()) {
      const durations: number[] = [];
      const startedAt = performance.now();
      const until = startedAt + (slice < 0 ? Math.min(500, sliceMs) : sliceMs);
      await Promise.all(
        Array.from({ length: options.clients }, async (_, client) => {
          while (performance.now() < until)
            durations.push(await timed(() => subjects[name](client)));
        }),
      );
      if (slice < 0) continue;
      done[name].count += durations.length;
      done[name].ms += performance.now() - startedAt;
      done[name].durations.push(...durations.slice(0, 50_000));
      options.context.progress(`${name}: slice ${slice + 1}/${slices}`);
    }
  return Object.fromEntries(
    names.map((name) => [
      name,
      {
        perSecond: (done[name].count / done[name].ms) * 1000,
        timing: summarize(done[name].durations),
      },
    ]),
  ) as Record<K, { perSecond: number; timing: Timing }>;
}

/** Proportional memory (PSS) of a process in MB; with shared pages counted by their share. */
export function memoryMb(pid: number): number {
  const rollup = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
  return Number(/^Pss:\s+(\d+)/m.exec(rollup)?.[1] ?? 0) / 1024;
}

/** Processor time of a process so far, in ms (user and system, its threads included). */
export function cpuMs(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
    .replace(/^.*\) /, '')
    .split(' ');
  return (Number(fields[11]) + Number(fields[12])) * 10;
}

export function isMet({ value, atMost, atLeast }: Target): boolean {
  return (atMost === undefined || value <= atMost) && (atLeast === undefined || value >= atLeast);
}
