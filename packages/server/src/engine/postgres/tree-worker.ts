// The thread that copies and removes trees, so that a thousand file operations in a row neither
// block the service nor fill its thread pool. What someone waits for goes before background work.
import { isMainThread, parentPort, Worker } from 'node:worker_threads';
import { type CopyTreeOptions, copyTree, giveTree, measureTree, removeTree } from './copy-tree.ts';
import type { Owner } from './fleet.ts';

type Job =
  | { kind: 'copy'; from: string; to: string; options: CopyTreeOptions }
  | { kind: 'give'; path: string; owner: Owner }
  | { kind: 'remove'; path: string }
  | { kind: 'measure'; path: string; except: readonly string[] };

type Outcome = { value: number } | { failure: { message: string; code?: string | undefined } };

export type Urgency = 'foreground' | 'background';

export interface TreeWorker {
  copy(from: string, to: string, options: CopyTreeOptions, urgency?: Urgency): Promise<void>;
  give(path: string, owner: Owner): Promise<void>;
  remove(path: string, urgency?: Urgency): Promise<void>;
  /** Sum of the sizes of all files below `path`, but for entries of it named in `except`. */
  measure(path: string, options: { except: readonly string[] }): Promise<number>;
  /** Jobs not done yet are dropped: their promises reject. */
  close(): Promise<void>;
}

interface Pending {
  job: Job;
  resolve(value: number): void;
  reject(error: Error): void;
}

export function createTreeWorker(): TreeWorker {
  const queues: Record<Urgency, Pending[]> = { foreground: [], background: [] };
  let worker: Worker | undefined;
  let current: Pending | undefined;
  let closed = false;

  function start(): Worker {
    const started = new Worker(new URL(import.meta.url), { name: 'trees' });
    started.on('message', (outcome: Outcome) => {
      const done = current;
      current = undefined;
      started.unref();
      if ('value' in outcome) done?.resolve(outcome.value);
      else done?.reject(Object.assign(new Error(outcome.failure.message), outcome.failure));
      next();
    });
    started.on('error', fail);
    return started;
  }

  function fail(error: unknown): void {
    const done = current;
    current = undefined;
    worker = undefined;
    done?.reject(error as Error);
    if (!closed) next();
  }

  function next(): void {
    if (current || closed) return;
    current = queues.foreground.shift() ?? queues.background.shift();
    if (!current) return;
    worker ??= start();
    worker.ref();
    worker.postMessage(current.job);
  }

  function submit(job: Job, urgency: Urgency): Promise<number> {
    if (closed) return Promise.reject(new Error('the tree worker is closed'));
    return new Promise((resolve, reject) => {
      queues[urgency].push({ job, resolve, reject });
      next();
    });
  }

  return {
    async copy(from, to, options, urgency = 'foreground') {
      await submit({ kind: 'copy', from, to, options }, urgency);
    },
    async give(path, owner) {
      await submit({ kind: 'give', path, owner }, 'foreground');
    },
    async remove(path, urgency = 'background') {
      await submit({ kind: 'remove', path }, urgency);
    },
    measure: (path, { except }) => submit({ kind: 'measure', path, except }, 'foreground'),
    async close() {
      closed = true;
      const dropped = [current, ...queues.foreground, ...queues.background];
      queues.foreground = [];
      queues.background = [];
      await worker?.terminate();
      for (const pending of dropped) pending?.reject(new Error('the tree worker is closed'));
    },
  };
}

if (!isMainThread && parentPort) {
  const port = parentPort;
  port.on('message', (job: Job) => {
    try {
      port.postMessage({ value: perform(job) } satisfies Outcome);
    } catch (error) {
      const { message, code } = error as NodeJS.ErrnoException;
      port.postMessage({ failure: { message, code } } satisfies Outcome);
    }
  });
}

function perform(job: Job): number {
  if (job.kind === 'measure') return measureTree(job.path, job.except);
  if (job.kind === 'copy') copyTree(job.from, job.to, job.options);
  else if (job.kind === 'give') giveTree(job.path, job.owner);
  else removeTree(job.path);
  return 0;
}
