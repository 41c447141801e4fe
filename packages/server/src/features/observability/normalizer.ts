// Queries without their constants. `mask` is a cheap first cut that runs for every new text; what
// it makes equal goes once through Postgres's own parser, off the calls' way.
import { type ChildProcess, fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';

export interface Normalized {
  /** The same for queries that differ only in constants, case or layout. */
  fingerprint: string;
  query: string;
}

export interface Normalizer {
  /** Answers later, and null if the parser cannot read it. */
  normalize(text: string, done: (normalized: Normalized | null) => void): void;
  /** Resolves when everything asked for so far has been answered. */
  settled(): Promise<void>;
  close(): void;
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
const childPath = fileURLToPath(new URL('normalizer-child.ts', import.meta.url));
/** Optimising the parser's huge functions would take a gigabyte, for a moment. */
const childFlags = ['--liftoff-only', '--max-old-space-size=64'];
/** The parser's process has tens of megabytes; it goes when new queries stop coming. */
const idleLimitMs = 30_000;

export function createNormalizer(): Normalizer {
  const backlog: { text: string; done: (normalized: Normalized | null) => void }[] = [];
  let child: ChildProcess | undefined;
  let inFlight: typeof backlog = [];
  const waiting: (() => void)[] = [];
  let idleTimer: NodeJS.Timeout | undefined;
  let isClosed = false;

  function next(): void {
    if (inFlight.length > 0 || isClosed) return;
    clearTimeout(idleTimer);
    if (backlog.length === 0) {
      idleTimer = setTimeout(stop, idleLimitMs).unref();
      return;
    }
    inFlight = backlog.splice(0, batchLimit);
    start().send(inFlight.map(({ text }) => text));
  }

  function answer(results: (Normalized | null)[]): void {
    const batch = inFlight;
    inFlight = [];
    for (const [index, { done }] of batch.entries()) done(results[index] ?? null);
    next();
    if (inFlight.length === 0) for (const resolve of waiting.splice(0)) resolve();
  }

  function start(): ChildProcess {
    if (child) return child;
    const started = fork(childPath, { execArgv: childFlags, env: {}, stdio: 'ignore' });
    child = started;
    started.unref();
    started.channel?.unref();
    started.on('message', (results) => answer(results as (Normalized | null)[]));
    started.on('error', () => {});
    started.on('exit', () => {
      if (child !== started) return;
      child = undefined;
      answer([]);
    });
    return started;
  }

  function stop(): void {
    const stopped = child;
    child = undefined;
    stopped?.kill('SIGKILL');
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
    close() {
      isClosed = true;
      clearTimeout(idleTimer);
      stop();
    },
  };
}
