// Prepared copies of the template, so that making a database is a rename. Filled in the background,
// one at a time; whoever finds the pool empty has a copy made at once.
import { randomUUID } from 'node:crypto';
import { chmod, mkdir, rename } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from '../../kernel/logger.ts';
import type { Draft, FleetHooks } from './fleet.ts';
import { pathsIn } from './layout.ts';
import type { PostgresHost } from './postgres-host.ts';
import { syncFilesystem } from './sync-filesystem.ts';
import type { Template } from './template.ts';
import type { Urgency } from './tree-worker.ts';

export interface Pool {
  /** A copy nobody else gets. */
  take(): Promise<Draft>;
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

export function createPool({ host, template, hooks, logger, target }: PoolDeps): Pool {
  const ready: Draft[] = [];
  let filling: Promise<void> | undefined;
  let closed = false;

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
      const draft = await prepare('background');
      await syncFilesystem(draft.paths.root);
      ready.push(draft);
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
      fill();
      return draft ?? prepare('foreground');
    },
    fill,
    filled: async () => filling,
    async close() {
      closed = true;
      await filling;
    },
  };
}
