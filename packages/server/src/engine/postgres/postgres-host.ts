// What every server on this machine shares: where things lie, which Postgres, whose uids, the blank
// cluster. Opening it takes the lock of the data directory.
import { mkdir, rm } from 'node:fs/promises';
import type { Logger } from '../../kernel/logger.ts';
import { type Binaries, findBinaries } from './binaries.ts';
import { blankCluster } from './blank-cluster.ts';
import { createLayout, type Layout, lockDataDirectory } from './layout.ts';
import { endServersBelow } from './orphans.ts';
import { createOwners, type Owners } from './owners.ts';
import { createTreeWorker, type TreeWorker } from './tree-worker.ts';

export interface PostgresHostOptions {
  dataDir: string;
  /** Where the binaries and the blank cluster are kept; they can always be made again. */
  cacheDir?: string | undefined;
  /** `bin` directory of a system Postgres; default: the one from npm. */
  postgresBin?: string | undefined;
  uidBase?: number | undefined;
  logger: Logger;
}

export interface PostgresHost {
  readonly layout: Layout;
  readonly binaries: Binaries;
  readonly owners: Owners;
  readonly trees: TreeWorker;
  readonly cacheDir: string;
  blankCluster(): Promise<string>;
  close(): Promise<void>;
}

export async function openPostgresHost(options: PostgresHostOptions): Promise<PostgresHost> {
  const { logger } = options;
  const layout = createLayout(options.dataDir);
  const unlock = lockDataDirectory(layout.dataDir);
  const trees = createTreeWorker();
  try {
    const orphans = await endServersBelow(layout.dataDir);
    if (orphans > 0) logger.warn({ servers: orphans }, 'ended servers that a killed service left');
    const cacheDir = options.cacheDir ?? layout.dataDir;
    await mkdir(cacheDir, { recursive: true });
    const owners = await createOwners({ dataDir: layout.dataDir, uidBase: options.uidBase });
    const binaries = await findBinaries({
      systemBin: options.postgresBin,
      dataDir: layout.dataDir,
      cacheDir,
      runner: owners.named,
    });
    let blank: Promise<string> | undefined;
    return {
      layout,
      binaries,
      owners,
      trees,
      cacheDir,
      blankCluster: () => (blank ??= blankCluster({ binaries, owners, trees, cacheDir, logger })),
      async close() {
        await trees.close();
        // Every server has stopped by now; one that was starting may have left its directory.
        await rm(layout.sockets, { recursive: true, force: true });
        unlock();
      },
    };
  } catch (error) {
    await trees.close();
    unlock();
    throw error;
  }
}
