// Starts instances when they are wanted, stops them when nobody wants them, and notices when they
// die. However many ask, an instance starts once; at most `maxRunning` run at a time, and the one
// that has been idle longest makes room. One with a lease is never put to sleep.
import { EventEmitter, once } from 'node:events';
import { rm } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { AppError, internal } from '../../kernel/app-error.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Lease } from '../engine.ts';
import type { FleetHooks, StopReason } from './fleet.ts';
import { createGate } from './gate.ts';
import { type Awake, createInstances, type Instance } from './instance.ts';
import { type Postmaster, socketPort } from './postmaster.ts';
import { asSuperuser } from './superuser.ts';

export interface SupervisorDeps {
  /** Starts the server of an instance and makes it fit for use. Fails for an unknown id. */
  launch(id: string): Promise<Postmaster>;
  hooks: FleetHooks;
  logger: Logger;
  idleMs: number;
  maxRunning: number;
}

export interface SupervisorStats {
  awake: number;
  starting: number;
  stopping: number;
  leases: number;
  wakes: number;
  wakeMsTotal: number;
  sleeps: number;
  crashes: number;
  failedStarts: number;
}

export type Supervisor = ReturnType<typeof createSupervisor>;

/** How long a wake waits for room, or for a crashed instance's remains. */
const roomTimeoutMs = 15_000;

export function createSupervisor(deps: SupervisorDeps) {
  const { hooks, logger } = deps;
  const sleepListeners: ((id: string) => void)[] = [];
  const wakeListeners: ((id: string) => void)[] = [];
  // Says `room` whenever a wake that found no room should look again.
  const changes = new EventEmitter().setMaxListeners(0);
  const counters = { wakes: 0, wakeMsTotal: 0, sleeps: 0, crashes: 0, failedStarts: 0 };
  const instances = createInstances((_, from) => {
    if (from.name === 'stopping' || from.name === 'starting') changes.emit('room');
  });
  // More at a time would only make each of them slower.
  const launches = createGate(Math.max(4, availableParallelism() * 2));
  let closing = false;

  /** A promise of what `work` does after the current phase has been left. */
  function during(work: () => Promise<unknown>): Promise<unknown> {
    const done = Promise.resolve().then(work);
    done.catch(() => {});
    return done;
  }

  async function wake(id: string): Promise<Lease> {
    for (;;) {
      if (closing) throw internal('the service is stopping');
      const instance = instances.get(id);
      const { phase } = instance;
      if (phase.name === 'awake') return lease(instance, phase);
      if (phase.name === 'asleep') {
        const done = during(() => start(instance));
        instances.move(instance, { name: 'starting', done });
        await done;
      } else if (phase.name === 'starting') await phase.done;
      else await phase.done.catch(() => {});
    }
  }

  async function start(instance: Instance): Promise<void> {
    const startedMs = performance.now();
    try {
      await room();
      const postmaster = await launches.pass(async () => {
        if (closing) throw internal('the service is stopping');
        return deps.launch(instance.id);
      });
      counters.wakes++;
      counters.wakeMsTotal += performance.now() - startedMs;
      enter(instance, postmaster);
    } catch (error) {
      instances.move(instance, { name: 'asleep' });
      if (error instanceof AppError) throw error;
      counters.failedStarts++;
      logger.error({ err: error, database: instance.id }, 'a database does not start');
      throw internal('the database does not start', error);
    }
  }

  /** Becomes awake, with nobody in yet. */
  function enter(instance: Instance, postmaster: Postmaster): void {
    const phase: Awake = {
      name: 'awake',
      postmaster,
      leases: 0,
      gone: new AbortController(),
      idleSinceMs: Date.now(),
      idleTimer: undefined,
    };
    instances.move(instance, phase);
    restIfIdle(instance, phase);
    for (const listener of wakeListeners) listener(instance.id);
    void postmaster.exited.then(({ log, code, signal }) => {
      if (!isIn(instance, phase)) return;
      counters.crashes++;
      logger.error({ database: instance.id, code, signal, log }, 'a database died');
      leave(instance, phase, async () => afterStop(instance, postmaster, 'crash'));
    });
  }

  const isIn = (instance: Instance, phase: Awake) => instances.get(instance.id).phase === phase;

  /** `awake → stopping → asleep`; `how` ends the server. */
  function leave(instance: Instance, phase: Awake, how: () => Promise<void>): Promise<unknown> {
    clearTimeout(phase.idleTimer);
    const done = during(async () => {
      try {
        await how();
      } finally {
        instances.move(instance, { name: 'asleep' });
      }
    });
    instances.move(instance, { name: 'stopping', done });
    for (const listener of sleepListeners) listener(instance.id);
    phase.gone.abort(new Error('the database went away'));
    return done;
  }

  async function afterStop(instance: Instance, { socketDirectory }: Postmaster, why: StopReason) {
    await rm(socketDirectory, { recursive: true, force: true });
    await hooks
      .afterStop?.(instance.id, why)
      .catch((error) => logger.error({ err: error, database: instance.id }, 'after a stop'));
  }

  function putToSleep(instance: Instance, phase: Awake, why: 'sleep' | 'shutdown') {
    const { postmaster } = phase;
    return leave(instance, phase, async () => {
      counters.sleeps++;
      const { beforeSleep } = hooks;
      if (beforeSleep)
        await asSuperuser(postmaster.socketDirectory, (client) =>
          beforeSleep(instance.id, client),
        ).catch((error) => logger.error({ err: error, database: instance.id }, 'before sleep'));
      const { code } = await postmaster.stop('fast');
      await afterStop(instance, postmaster, code === 0 ? why : 'crash');
    });
  }

  function lease(instance: Instance, phase: Awake): Lease {
    clearTimeout(phase.idleTimer);
    phase.leases++;
    let released = false;
    return {
      socketDirectory: phase.postmaster.socketDirectory,
      port: socketPort,
      signal: phase.gone.signal,
      release() {
        if (released) return;
        released = true;
        phase.leases--;
        restIfIdle(instance, phase);
      },
    };
  }

  function restIfIdle(instance: Instance, phase: Awake): void {
    if (phase.leases > 0 || !isIn(instance, phase)) return;
    phase.idleSinceMs = Date.now();
    clearTimeout(phase.idleTimer);
    phase.idleTimer = setTimeout(() => {
      if (isIn(instance, phase) && phase.leases === 0) void putToSleep(instance, phase, 'sleep');
    }, deps.idleMs);
    phase.idleTimer.unref();
    changes.emit('room');
  }

  /** Waits until one more may run; the caller counts already. */
  async function room(): Promise<void> {
    const timeout = AbortSignal.timeout(roomTimeoutMs);
    while (instances.running > deps.maxRunning && !closing) {
      const idle = instances
        .awake()
        .filter(({ phase }) => phase.leases === 0)
        .sort((a, b) => a.phase.idleSinceMs - b.phase.idleSinceMs)[0];
      if (idle) {
        await putToSleep(idle.instance, idle.phase, 'sleep');
        continue;
      }
      await once(changes, 'room', { signal: timeout }).catch(() => {
        throw new AppError(
          429,
          `${deps.maxRunning} databases are in use at once, which is this service's limit; try again later`,
          { retryAfterSeconds: 5 },
        );
      });
    }
  }

  /** Runs `work` on the stopped instance if it is asleep now; nobody wakes it meanwhile. */
  async function ifAsleep<T>(
    id: string,
    name: 'held' | 'removing',
    work: () => Promise<T>,
  ): Promise<{ ran: false } | { ran: true; value: T }> {
    const instance = instances.get(id);
    if (instance.phase.name !== 'asleep') return { ran: false };
    const value = during(work) as Promise<T>;
    const done = value.finally(() => instances.move(instance, { name: 'asleep' }));
    done.catch(() => {});
    instances.move(instance, { name, done });
    return { ran: true, value: await (done as Promise<T>) };
  }

  return {
    wake,
    onSleep: (listener: (id: string) => void) => void sleepListeners.push(listener),
    onWake: (listener: (id: string) => void) => void wakeListeners.push(listener),
    isAwake: (id: string) => instances.get(id).phase.name === 'awake',
    ifAsleep: <T>(id: string, work: () => Promise<T>) => ifAsleep(id, 'held', work),

    /** Takes over a server that runs already. */
    enter(id: string, postmaster: Postmaster): void {
      enter(instances.get(id), postmaster);
    },

    /** Ends it at once, whoever is in, and runs `work` before anyone can wake it again. */
    async remove(id: string, work: () => Promise<void>): Promise<void> {
      for (;;) {
        const instance = instances.get(id);
        const { phase } = instance;
        if (phase.name === 'asleep') {
          const removed = await ifAsleep(id, 'removing', work);
          if (removed.ran) return;
        } else if (phase.name === 'awake') {
          await leave(instance, phase, async () => {
            await phase.postmaster.stop('immediate');
            await rm(phase.postmaster.socketDirectory, { recursive: true, force: true });
          });
        } else await phase.done.catch(() => {});
      }
    },

    stats(): SupervisorStats {
      const phases = [...instances.all()].map(({ phase }) => phase);
      const count = (name: string) => phases.filter((phase) => phase.name === name).length;
      return {
        awake: count('awake'),
        starting: count('starting'),
        stopping: count('stopping'),
        leases: instances.awake().reduce((sum, { phase }) => sum + phase.leases, 0),
        ...counters,
      };
    },

    /** Stops everything, all at the same time. */
    async close(): Promise<void> {
      closing = true;
      changes.emit('room');
      for (;;) {
        const busy = [...instances.all()].map((instance) =>
          instance.phase.name === 'awake'
            ? putToSleep(instance, instance.phase, 'shutdown')
            : instance.phase.name === 'asleep'
              ? undefined
              : instance.phase.done,
        );
        if (busy.length === 0) return;
        await Promise.allSettled(busy);
      }
    },
  };
}
