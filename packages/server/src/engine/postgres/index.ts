// The engine that gives every database a Postgres server of its own. This file puts its parts
// together; fleet.ts has the picture of the disk, instance.ts the life of an instance.
import type { Logger } from '../../kernel/logger.ts';
import type { Engine } from '../engine.ts';
import type { Fleet, FleetHooks, History } from './fleet.ts';
import { type FleetOptions, type FleetStats, openFleet } from './postgres-fleet.ts';
import type { PostgresHost } from './postgres-host.ts';

export interface PostgresEngine extends Engine {
  stats(): FleetStats;
  /** Settles when the pool of prepared databases is full. */
  prepared(): Promise<void>;
  close(): Promise<void>;
}

export async function createPostgresEngine(deps: {
  host: PostgresHost;
  schemaDirectory: string;
  options: FleetOptions;
  createHistory: (fleet: Fleet) => History;
  logger: Logger;
}): Promise<PostgresEngine> {
  const hooks: FleetHooks = {};
  const fleet = await openFleet({ ...deps, hooks });
  const history = deps.createHistory(fleet);
  Object.assign(hooks, history.hooks);

  return {
    create: (id, { adminVerifier }) => fleet.create(id, adminVerifier),
    destroy: fleet.destroy,
    wake: fleet.wake,
    branch: (parentId, childId, options) => history.branch(parentId, childId, options),
    backUp: (id, sink, options) => history.backUp(id, sink, options),
    restore: (id, source, options) => history.restore(id, source, options),
    history: (id) => history.history(id),
    sizeBytes: fleet.sizeBytes,
    onSleep: fleet.onSleep,
    onWake: fleet.onWake,
    reconcile: fleet.reconcile,
    stats: fleet.stats,
    prepared: fleet.prepared,
    async close() {
      // First whoever uses the fleet, then the fleet.
      await history.close?.();
      await fleet.close();
    },
  };
}
