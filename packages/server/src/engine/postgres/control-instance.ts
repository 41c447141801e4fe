// The control database when no external one is configured: a server of the same kind as the
// customers', from `control/`, started with the service and started again if it dies.
import { lstat, mkdir, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type pg from 'pg';
import type { Logger } from '../../kernel/logger.ts';
import type { Owner } from './fleet.ts';
import { sync } from './instance-record.ts';
import { clearLeftovers } from './orphans.ts';
import type { PostgresHost } from './postgres-host.ts';
import { type Postmaster, socketPort, startPostmaster } from './postmaster.ts';
import { controlSettings } from './server-settings.ts';
import { syncFilesystem } from './sync-filesystem.ts';

export interface ControlInstance {
  readonly connection: pg.ClientConfig;
  stop(): Promise<void>;
}

export async function startControlInstance(deps: {
  host: PostgresHost;
  logger: Logger;
}): Promise<ControlInstance> {
  const { host, logger } = deps;
  const data = join(host.layout.control, 'data');
  const socketDirectory = join(host.layout.sockets, 'control');
  const owner = await prepare(host, data);
  let stopping = false;
  let running = start();

  async function launch(): Promise<Postmaster> {
    await clearLeftovers(data);
    return startPostmaster({
      binaries: host.binaries,
      data,
      socketDirectory,
      owner,
      settings: controlSettings(host.binaries),
    });
  }

  function start(): Promise<Postmaster> {
    const started = launch();
    void started.then(
      ({ exited }) => exited.then(({ log }) => restart(log)),
      () => {},
    );
    return started;
  }

  function restart(log: string, delayMs = 50): void {
    if (stopping) return;
    logger.error({ log }, 'the control database ended; starting it again');
    running = start();
    running.catch((error) => {
      logger.error({ err: error }, 'the control database does not start');
      setTimeout(() => restart(String(error), Math.min(delayMs * 2, 5_000)), delayMs).unref();
    });
  }

  await running;
  return {
    connection: { host: socketDirectory, port: socketPort, user: 'postgres', database: 'postgres' },
    async stop() {
      stopping = true;
      await running.then(
        (postmaster) => postmaster.stop('fast'),
        () => {},
      );
      await rm(socketDirectory, { recursive: true, force: true });
    },
  };
}

/** Makes the cluster on first start. */
async function prepare(host: PostgresHost, data: string): Promise<Owner | undefined> {
  const { owners, layout, trees } = host;
  if (!(await stat(data).catch(() => null))) {
    const draft = join(layout.control, 'draft');
    await rm(draft, { recursive: true, force: true });
    await mkdir(layout.control, { recursive: true });
    const owner = owners.allocate();
    await trees.copy(await host.blankCluster(), draft, { owner });
    await syncFilesystem(draft);
    await rename(draft, data);
    await sync(layout.control);
    return owner;
  }
  const { uid, gid } = await lstat(data);
  if (!owners.named) return undefined;
  owners.claim(uid);
  return { uid, gid };
}
