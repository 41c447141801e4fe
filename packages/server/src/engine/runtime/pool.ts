// Which sandbox runs what. A few spares wait booted, with nobody's code in them; one that has taken
// a version's code serves that version only, stays warm while it is used, and ends when it idles.
//
// Invariants: never more than `maxSandboxes` processes; never more than `maxPerFunction` runs of
// one function at a time, and never more than half of all for one tenant; a run that cannot start
// waits, first come first served among those that could, for at most `maxWaitMs`.
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from '../../kernel/logger.ts';
import type { Invocation, Outcome, Program, Sandbox } from './sandbox.ts';

export interface PoolOptions {
  /** `onEnd` is called when the process has ended, for whatever reason. */
  launch(memoryMb: number, allowlist: readonly string[], onEnd: () => void): Sandbox;
  /** Whether a sandbox can boot before it is known whose code it will run. */
  generic: boolean;
  spares: number;
  maxSandboxes: number;
  maxPerFunction: number;
  maxWaitMs: number;
  idleMs: number;
  defaultMemoryMb: number;
  logger: Logger;
}

export interface Job {
  /** Whose it is: one tenant cannot take all sandboxes. */
  tenantId: string;
  functionId: string;
  versionId: string;
  memoryMb: number;
  program(): Promise<Program>;
  invocation: Invocation;
}

export interface PoolCounts {
  total: number;
  spare: number;
  idle: number;
  running: number;
  waiting: number;
}

export interface Pool {
  run(job: Job): Promise<Outcome>;
  /** Boots the spares; resolves when they are there. */
  fill(): Promise<void>;
  counts(): PoolCounts;
  close(): Promise<void>;
}

/** Nothing was free in time: the caller should try again. */
export class PoolExhausted extends Error {}

interface Warm {
  sandbox: Sandbox;
  versionId: string;
  timer: NodeJS.Timeout;
}

interface Waiting {
  job: Job;
  start(): void;
}

const maxWaiting = 5_000;
const maxWaitingPerFunction = 200;
const settleWaitMs = 10;

export function createPool(options: PoolOptions): Pool {
  const all = new Set<Sandbox>();
  const spares = new Set<Sandbox>();
  /** Oldest first. */
  let idle: Warm[] = [];
  let queue: Waiting[] = [];
  /** Runs by function and by tenant. */
  const running = new Map<string, number>();
  const maxPerTenant = Math.max(1, Math.ceil(options.maxSandboxes / 2));
  /** By version: the sandbox that answered last, until it is known whether it can go on. */
  const settling = new Map<string, Promise<boolean>>();
  const ending = new Set<Promise<void>>();
  let runningTotal = 0;
  let closed = false;

  function start(memoryMb: number, allowlist: readonly string[]): Sandbox {
    const sandbox = options.launch(memoryMb, allowlist, () => forget(sandbox));
    all.add(sandbox);
    return sandbox;
  }

  function forget(sandbox: Sandbox): void {
    all.delete(sandbox);
    spares.delete(sandbox);
    idle = idle.filter((warm) => {
      if (warm.sandbox !== sandbox) return true;
      clearTimeout(warm.timer);
      return false;
    });
    startWaiting();
  }

  async function fill(): Promise<void> {
    if (!options.generic) return;
    const booting: Promise<void>[] = [];
    while (!closed && spares.size < options.spares && all.size < options.maxSandboxes) {
      const sandbox = start(options.defaultMemoryMb, []);
      spares.add(sandbox);
      booting.push(
        sandbox.booted.catch((error) => {
          options.logger.warn({ err: error }, 'a function sandbox did not start');
          throw error;
        }),
      );
    }
    await Promise.all(booting);
  }

  /** Places are never more than sandboxes: whoever has one finds an idle one to use or to end. */
  const mayStart = ({ tenantId, functionId }: Job) =>
    (running.get(functionId) ?? 0) < options.maxPerFunction &&
    (running.get(tenantId) ?? 0) < maxPerTenant &&
    runningTotal < options.maxSandboxes;

  function startWaiting(): void {
    for (const waiting of queue) if (mayStart(waiting.job)) waiting.start();
  }

  function enter({ tenantId, functionId }: Job): void {
    for (const id of [tenantId, functionId]) running.set(id, (running.get(id) ?? 0) + 1);
    runningTotal++;
  }

  function leave({ tenantId, functionId }: Job): void {
    for (const id of [tenantId, functionId]) {
      const left = (running.get(id) ?? 1) - 1;
      if (left > 0) running.set(id, left);
      else running.delete(id);
    }
    runningTotal--;
    startWaiting();
  }

  /** Waits for a place among the running ones and takes it. */
  function takePlace(job: Job): Promise<void> {
    if (closed) throw new PoolExhausted('the service is stopping');
    // Nobody is passed over: whoever waits is kept from starting by a limit of its own.
    if (mayStart(job)) {
      enter(job);
      return Promise.resolve();
    }
    const rivals = queue.filter((other) => other.job.functionId === job.functionId).length;
    if (queue.length >= maxWaiting || rivals >= maxWaitingPerFunction)
      throw new PoolExhausted('too many runs are waiting');
    return new Promise((resolve, reject) => {
      const remove = () => {
        queue = queue.filter((other) => other !== waiting);
        clearTimeout(timer);
      };
      const timer = setTimeout(() => {
        remove();
        reject(new PoolExhausted('no sandbox became free in time'));
      }, options.maxWaitMs);
      const waiting: Waiting = {
        job,
        start() {
          remove();
          enter(job);
          resolve();
        },
      };
      queue.push(waiting);
    });
  }

  function takeWarm({ versionId }: Job): Sandbox | undefined {
    const at = idle.findLastIndex((warm) => warm.versionId === versionId);
    const [warm] = at === -1 ? [] : idle.splice(at, 1);
    clearTimeout(warm?.timer);
    return warm?.sandbox;
  }

  /** A sandbox with the version's code in it. The caller has a place, so there is room for one. */
  async function obtain(job: Job): Promise<Sandbox> {
    let warm = takeWarm(job);
    // One that has just answered is back in a moment, sooner than another starts.
    if (!warm && settling.has(job.versionId)) {
      await Promise.race([settling.get(job.versionId), delay(settleWaitMs)]);
      warm = takeWarm(job);
    }
    if (warm) return warm;
    const program = await job.program();
    const sandbox = takeSpare(job.memoryMb) ?? (await startFor(job, program));
    try {
      await sandbox.booted;
      await sandbox.load(program);
      return sandbox;
    } catch (error) {
      void retire(sandbox);
      throw error;
    }
  }

  function takeSpare(memoryMb: number): Sandbox | undefined {
    if (memoryMb !== options.defaultMemoryMb) return undefined;
    const ready = [...spares].find(({ state }) => state === 'spare') ?? [...spares][0];
    if (ready) spares.delete(ready);
    return ready;
  }

  async function startFor(job: Job, program: Program): Promise<Sandbox> {
    while (all.size >= options.maxSandboxes) {
      const victim = idle[0]?.sandbox ?? [...spares][0];
      if (victim) await retire(victim);
      else if (ending.size > 0) await Promise.race(ending);
      else break;
    }
    return start(job.memoryMb, program.allowlist);
  }

  /** Ends a sandbox that nobody uses; from this moment nobody gets it. */
  function retire(sandbox: Sandbox): Promise<void> {
    spares.delete(sandbox);
    idle = idle.filter((warm) => {
      if (warm.sandbox === sandbox) clearTimeout(warm.timer);
      return warm.sandbox !== sandbox;
    });
    const ended = sandbox.end().finally(() => ending.delete(ended));
    ending.add(ended);
    return ended;
  }

  async function giveBack(job: Job, sandbox: Sandbox): Promise<void> {
    const settled = sandbox.settled();
    settling.set(job.versionId, settled);
    const reusable = await settled;
    if (settling.get(job.versionId) === settled) settling.delete(job.versionId);
    if (!reusable || closed) return void retire(sandbox);
    const timer = setTimeout(() => void retire(sandbox), options.idleMs);
    timer.unref();
    idle.push({ sandbox, versionId: job.versionId, timer });
  }

  return {
    async run(job) {
      await takePlace(job);
      let sandbox: Sandbox | undefined;
      try {
        sandbox = await obtain(job);
        return await sandbox.invoke(job.invocation);
      } finally {
        void (async () => {
          if (sandbox) await giveBack(job, sandbox);
          leave(job);
          fill().catch(() => {});
        })();
      }
    },

    fill,

    counts: () => ({
      total: all.size,
      spare: spares.size,
      idle: idle.length,
      running: runningTotal,
      waiting: queue.length,
    }),

    async close() {
      closed = true;
      await Promise.all([...all].map((sandbox) => sandbox.end()));
    },
  };
}
