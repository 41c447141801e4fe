// Prepared copies of the template, so that making a database is a rename. Filled in the background,
// one at a time; whoever finds the pool empty has a copy made at once, or gets the one that is being
// made, whichever is first.
import { randomUUID } from 'node:crypto';
import { chmod, mkdir, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from '../../kernel/logger.ts';
import type { Draft, FleetHooks } from './fleet.ts';
import { pathsIn } from './layout.ts';
import type { PostgresHost } from './postgres-host.ts';
import { syncFilesystem } from './sync-filesystem.ts';
import type { Template } from './template.ts';
import type { Urgency } from './threads.ts';

export interface PreparedCopy {
  draft: Draft;
  /** Whether all of it would survive a power cut. */
  isSynced: boolean;
}

export interface Pool {
  /** A copy nobody else gets. */
  take(): Promise<PreparedCopy>;
  readonly size: number;
  /** Starts filling in the background, unless it is full. */
  fill(): void;
  /** Settles when it is full. */
  filled(): Promise<void>;
  close(): Promise<void>;
}

export interface PoolDeps {
  host: PostgresHost;
  template: Template;
  hooks: FleetHooks;
  logger: Logger;
  /** How many copies are kept ready. */
  target: number;
}

interface Waiter {
  resolve(copy: PreparedCopy): void;
  reject(error: unknown): void;
}

const quietMs = 30;

export function createPool({ host, template, hooks, logger, target }: PoolDeps): Pool {
  const ready: Draft[] = [];
  const waiting: Waiter[] = [];
  let filling: Promise<void> | undefined;
  let closed = false;
  let takenAtMs = Number.NEGATIVE_INFINITY;

  async function prepare(urgency: Urgency): Promise<Draft> {
    const draft: Draft = {
      paths: pathsIn(join(host.layout.pool, randomUUID())),
      owner: host.owners.allocate(),
    };
    try {
      await mkdir(draft.paths.root);
      await chmod(draft.paths.root, 0o711);
      await host.trees.copy(template.data, draft.paths.data, { owner: draft.owner }, urgency);
      await hooks.onPrepare?.(draft);
      return draft;
    } catch (error) {
      host.owners.release(draft.owner);
      discard(draft.paths.root);
      throw error;
    }
  }

  /** Out of sight at once, so that nothing half-made is ever found; the files go later. */
  function discard(root: string): void {
    const trash = join(host.layout.trash, randomUUID());
    void rename(root, trash)
      .then(() => host.trees.remove(trash))
      .catch(() => {});
  }

  async function refill(): Promise<void> {
    while (!closed && ready.length < target) {
      await quiet();
      if (closed) return;
      await offer(await prepare('background'));
    }
  }

  /** A copy is there: for whoever waits longest, else for the pool. */
  async function offer(draft: Draft): Promise<void> {
    const waiter = waiting.shift();
    if (waiter) return waiter.resolve({ draft, isSynced: false });
    await syncFilesystem(draft.paths.root);
    const late = waiting.shift();
    if (late) late.resolve({ draft, isSynced: true });
    else ready.push(draft);
  }

  function makeAtOnce(): Promise<PreparedCopy> {
    return new Promise((resolve, reject) => {
      waiting.push({ resolve, reject });
      prepare('foreground')
        .then(offer)
        .catch((error) => waiting.shift()?.reject(error));
    });
  }

  /** Copying and syncing slow down whoever makes databases: it waits for a pause, while it can. */
  async function quiet(): Promise<void> {
    for (;;) {
      const waitMs = takenAtMs + quietMs - performance.now();
      if (closed || waitMs <= 0 || ready.length <= target / 4) return;
      await delay(waitMs, undefined, { ref: false });
    }
  }

  function fill(): void {
    if (closed || filling) return;
    filling = refill()
      .catch((error) => {
        if (!closed) logger.error({ err: error }, 'cannot prepare databases in advance');
      })
      .finally(() => {
        filling = undefined;
      });
  }

  return {
    get size() {
      return ready.length;
    },
    async take() {
      const draft = ready.shift();
      takenAtMs = performance.now();
      fill();
      return draft ? { draft, isSynced: true } : makeAtOnce();
    },
    fill,
    filled: async () => filling,
    async close() {
      closed = true;
      await filling;
    },
  };
}
