// The threads that copy and remove trees, so that a thousand file operations in a row neither block
// the service nor fill its thread pool. What someone waits for goes before background work, which
// has one thread at most.
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
  urgency: Urgency;
  resolve(value: number): void;
  reject(error: Error): void;
}

interface Thread {
  worker: Worker | undefined;
  current: Pending | undefined;
}

const threadCount = 2;

export function createTreeWorker(): TreeWorker {
  const queues: Record<Urgency, Pending[]> = { foreground: [], background: [] };
  const threads: Thread[] = Array.from({ length: threadCount }, () => ({
    worker: undefined,
    current: undefined,
  }));
  let closed = false;

  function start(thread: Thread): Worker {
    const worker = new Worker(new URL(import.meta.url), { name: 'trees' });
    worker.on('message', (outcome: Outcome) => {
      const done = thread.current;
      thread.current = undefined;
      worker.unref();
      if ('value' in outcome) done?.resolve(outcome.value);
      else done?.reject(Object.assign(new Error(outcome.failure.message), outcome.failure));
      next();
    });
    worker.on('error', (error) => {
      const done = thread.current;
      thread.current = undefined;
      thread.worker = undefined;
      done?.reject(error as Error);
      next();
    });
    return worker;
  }

  function next(): void {
    for (const thread of threads) {
      if (thread.current || closed) continue;
      const inBackground = threads.some(({ current }) => current?.urgency === 'background');
      const pending =
        queues.foreground.shift() ?? (inBackground ? undefined : queues.background.shift());
      if (!pending) return;
      thread.current = pending;
      thread.worker ??= start(thread);
      thread.worker.ref();
      thread.worker.postMessage(pending.job);
    }
  }

  function submit(job: Job, urgency: Urgency): Promise<number> {
    if (closed) return Promise.reject(new Error('the tree workers are closed'));
    return new Promise((resolve, reject) => {
      queues[urgency].push({ job, urgency, resolve, reject });
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
      const running = threads.map(({ current }) => current);
      const dropped = [...running, ...queues.foreground, ...queues.background];
      queues.foreground = [];
      queues.background = [];
      await Promise.all(threads.map(({ worker }) => worker?.terminate()));
      for (const pending of dropped) pending?.reject(new Error('the tree workers are closed'));
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
