// A Postgres of the same binaries, as initdb makes it, to compare with.
import { randomUUID } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { openPostgresHost } from '../../packages/server/src/engine/postgres/postgres-host.ts';
import { startPostmaster } from '../../packages/server/src/engine/postgres/postmaster.ts';
import { instanceSettings } from '../../packages/server/src/engine/postgres/server-settings.ts';
import { createLogger } from '../../packages/server/src/kernel/logger.ts';

const cacheDir = resolve(fileURLToPath(import.meta.url), '../../../node_modules/.cache/coppice');

export interface PlainPostgres {
  socketDirectory: string;
  pid: number;
  stop(): Promise<void>;
}

export interface PreparedPostgres {
  /** What the service starts databases with. */
  instanceSettings: Record<string, string>;
  /** `settings` come on top of stock ones. */
  start(settings?: Record<string, string>): Promise<PlainPostgres>;
}

export interface PlainPostgresSource {
  /** A copy of the blank cluster, not started. */
  prepare(): Promise<PreparedPostgres>;
  /** A new server on one. */
  start(settings?: Record<string, string>): Promise<PlainPostgres>;
  close(): Promise<void>;
}

export async function openPlainPostgres(): Promise<PlainPostgresSource> {
  const directory = await mkdtemp(join(tmpdir(), 'coppice-bench-plain-'));
  const host = await openPostgresHost({
    dataDir: directory,
    cacheDir,
    logger: createLogger('silent'),
  });
  const blank = await host.blankCluster();
  async function prepare(): Promise<PreparedPostgres> {
    const owner = host.owners.allocate();
    const data = join(host.layout.drafts, randomUUID());
    await host.trees.copy(blank, data, { owner });
    return {
      instanceSettings: instanceSettings(host.binaries, {
        connections: 60,
        sharedBuffersMb: 16,
        temporaryFilesMb: 5120,
        sessionMemoryMb: 2048,
      }),
      async start(settings = {}) {
        const postmaster = await startPostmaster({
          binaries: host.binaries,
          data,
          socketDirectory: join(host.layout.sockets, randomUUID().slice(0, 8)),
          owner,
          settings,
        });
        return {
          socketDirectory: postmaster.socketDirectory,
          pid: postmaster.pid,
          async stop() {
            await postmaster.stop('fast');
          },
        };
      },
    };
  }

  return {
    prepare,
    start: async (settings) => (await prepare()).start(settings),
    async close() {
      await host.close();
      await rm(directory, { recursive: true, force: true });
    },
  };
}
