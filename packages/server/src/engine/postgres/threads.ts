// Threads for file work, so that a thousand file operations in a row neither block the service nor
// fill Node's own thread pool; synchronous calls in a thread are also several times faster for small
// files than one asynchronous call each. What someone waits for goes before background work, which
// has one thread at most. A thread that has had nothing to do for a while ends: it takes memory.
import { isMainThread, parentPort, Worker } from 'node:worker_threads';

export type Urgency = 'foreground' | 'background';

export interface Threads<Job> {
  /** Starts all threads, so that the first job does not wait for its thread. */
  warm(): void;
  /** Resolves with what `perform` of `serveJobs` answers. */
  run(job: Job, urgency?: Urgency): Promise<number>;
  /** Jobs not done yet are dropped: their promises reject. */
  close(): Promise<void>;
}

interface Pending<Job> {
  job: Job;
  urgency: Urgency;
  resolve(value: number): void;
  reject(error: Error): void;
}

interface Thread<Job> {
  worker: Worker;
  current: Pending<Job> | undefined;
  idleTimer: NodeJS.Timeout | undefined;
}

type Outcome = { value: number } | { failure: { message: string; code?: string | undefined } };

const idleLimitMs = 10_000;

/** `module` is a file that calls `serveJobs` with the work it knows. */
export function createThreads<Job>(
  module: URL,
  { name, size }: { name: string; size: number },
): Threads<Job> {
  const threads = new Set<Thread<Job>>();
  const queues: Record<Urgency, Pending<Job>[]> = { foreground: [], background: [] };
  let closed = false;

  function start(): Thread<Job> {
    const worker = new Worker(module, { name });
    const thread: Thread<Job> = { worker, current: undefined, idleTimer: undefined };
    threads.add(thread);
    worker.on('message', (outcome: Outcome) => {
      const done = thread.current;
      thread.current = undefined;
      if ('value' in outcome) done?.resolve(outcome.value);
      else done?.reject(Object.assign(new Error(outcome.failure.message), outcome.failure));
      rest(thread);
      feed();
    });
    worker.on('error', (error) => {
      threads.delete(thread);
      clearTimeout(thread.idleTimer);
      thread.current?.reject(error as Error);
      thread.current = undefined;
      feed();
    });
    return thread;
  }

  function rest(thread: Thread<Job>): void {
    thread.worker.unref();
    thread.idleTimer = setTimeout(() => {
      threads.delete(thread);
      void thread.worker.terminate();
    }, idleLimitMs).unref();
  }

  function next(): Pending<Job> | undefined {
    const inBackground = [...threads].some(({ current }) => current?.urgency === 'background');
    return queues.foreground.shift() ?? (inBackground ? undefined : queues.background.shift());
  }

  function feed(): void {
    while (!closed) {
      const idle = [...threads].find(({ current }) => !current);
      if (!idle && threads.size === size) return;
      const pending = next();
      if (!pending) return;
      const thread = idle ?? start();
      clearTimeout(thread.idleTimer);
      thread.current = pending;
      thread.worker.ref();
      thread.worker.postMessage(pending.job);
    }
  }

  return {
    warm() {
      while (!closed && threads.size < size) rest(start());
    },
    run(job, urgency = 'foreground') {
      if (closed) return Promise.reject(new Error(`the threads for ${name} are closed`));
      return new Promise((resolve, reject) => {
        queues[urgency].push({ job, urgency, resolve, reject });
        feed();
      });
    },
    async close() {
      closed = true;
      const running = [...threads].map(({ current }) => current);
      const dropped = [...running, ...queues.foreground, ...queues.background];
      queues.foreground = [];
      queues.background = [];
      for (const { idleTimer } of threads) clearTimeout(idleTimer);
      await Promise.all([...threads].map(({ worker }) => worker.terminate()));
      for (const pending of dropped)
        pending?.reject(new Error(`the threads for ${name} are closed`));
    },
  };
}

/** The thread's side; does nothing in the main thread, which loads the same file. */
export function serveJobs<Job>(perform: (job: Job) => number): void {
  if (isMainThread || !parentPort) return;
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
