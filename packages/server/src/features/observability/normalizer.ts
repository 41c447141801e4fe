// Queries without their constants. `mask` is a cheap first cut that runs for every new text; what
// it makes equal goes once through Postgres's own parser, off the calls' way.
import { Worker } from 'node:worker_threads';

export interface Normalizer {
  /** Answers later, and null if the parser cannot read it. */
  normalize(text: string, done: (normalized: string | null) => void): void;
  /** Resolves when everything asked for so far has been answered. */
  settled(): Promise<void>;
  close(): Promise<void>;
}

const quoted = /'(?:[^']|'')*'|\$([A-Za-z_]\w*)?\$[\s\S]*?\$\1\$/g;
const numbers = /(?<![\w$.])\d+(?:\.\d+)?(?:e[+-]?\d+)?\b/gi;

/** Literals replaced by `?`, white space by single blanks. */
export function mask(text: string): string {
  return text.replace(quoted, '?').replace(numbers, '?').replace(/\s+/g, ' ').trim();
}

/** Constants that the parser leaves alone (in utility statements) are nobody's business either. */
export const maskQuoted = (text: string) => text.replace(quoted, '?').replace(/\s+/g, ' ').trim();

const batchLimit = 64;
const backlogLimit = 2_000;

export function createNormalizer(): Normalizer {
  const backlog: { text: string; done: (normalized: string | null) => void }[] = [];
  let worker: Worker | undefined;
  let inFlight: typeof backlog = [];
  const waiting: (() => void)[] = [];
  let isClosed = false;

  function next(): void {
    if (inFlight.length > 0 || backlog.length === 0 || isClosed) return;
    inFlight = backlog.splice(0, batchLimit);
    start().postMessage(inFlight.map(({ text }) => text));
  }

  function answer(results: (string | null)[]): void {
    const batch = inFlight;
    inFlight = [];
    for (const [index, { done }] of batch.entries()) done(results[index] ?? null);
    next();
    if (inFlight.length === 0) for (const resolve of waiting.splice(0)) resolve();
  }

  function start(): Worker {
    if (worker) return worker;
    const started = new Worker(new URL('normalizer-worker.ts', import.meta.url), {
      resourceLimits: { maxOldGenerationSizeMb: 128 },
    });
    worker = started;
    started.unref();
    started.on('message', answer);
    started.on('error', () => {});
    started.on('exit', () => {
      if (worker === started) worker = undefined;
      answer([]);
    });
    return started;
  }

  return {
    normalize(text, done) {
      if (backlog.length >= backlogLimit) return done(null);
      backlog.push({ text, done });
      next();
    },
    async settled() {
      if (inFlight.length > 0) await new Promise<void>((resolve) => waiting.push(resolve));
    },
    async close() {
      isClosed = true;
      await worker?.terminate();
    },
  };
}
