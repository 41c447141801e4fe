// The cluster as initdb makes it, made once a Postgres version and kept: the template of customers'
// databases and the control database both start as copies of it.
import { execFile } from 'node:child_process';
import { chmod, chown, mkdir, mkdtemp, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { Logger } from '../../kernel/logger.ts';
import type { Binaries } from './binaries.ts';
import { type Owners, serviceUserName } from './owners.ts';
import { ownWorkingDirectory } from './postmaster.ts';
import { syncFilesystem } from './sync-filesystem.ts';
import type { TreeWorker } from './tree-worker.ts';

const run = promisify(execFile);

export async function blankCluster(deps: {
  binaries: Binaries;
  owners: Owners;
  trees: TreeWorker;
  cacheDir: string;
  logger: Logger;
}): Promise<string> {
  const { binaries, owners, trees, cacheDir, logger } = deps;
  const access = accessRules(binaries);
  const target = join(cacheDir, `blank-cluster-${binaries.version}-${access.method}`);
  if (await stat(join(target, 'PG_VERSION')).catch(() => null)) return target;

  const started = Date.now();
  logger.info({ version: binaries.version }, 'making the first Postgres cluster');
  const draft = await mkdtemp(`${target}.`);
  const data = join(draft, 'data');
  try {
    await chmod(draft, 0o711);
    await mkdir(data, { mode: 0o700 });
    if (owners.named) await chown(data, owners.named.uid, owners.named.gid);
    await initialise(binaries, data, owners);
    if (owners.named) await trees.give(data, { uid: 0, gid: 0 });
    // Settings come on the command line; who gets in is the same for every cluster.
    await writeFile(join(data, 'postgresql.conf'), '', { mode: 0o600 });
    await writeFile(join(data, 'pg_hba.conf'), access.hba, { mode: 0o600 });
    await writeFile(join(data, 'pg_ident.conf'), access.ident, { mode: 0o600 });
    await syncFilesystem(data);
    await rename(data, target);
  } catch (error) {
    // Another service that shares the cache may have been faster.
    if (!(await stat(join(target, 'PG_VERSION')).catch(() => null))) throw error;
  } finally {
    await rm(draft, { recursive: true, force: true });
  }
  logger.info({ durationMs: Date.now() - started }, 'made the first Postgres cluster');
  return target;
}

async function initialise(binaries: Binaries, data: string, owners: Owners): Promise<void> {
  const args = [
    ...['-D', ownWorkingDirectory(data), '-U', 'postgres', '-A', 'trust', '-E', 'UTF8'],
    ...['--no-sync', '--no-instructions', '--data-checksums', '--wal-segsize=1', '--locale=C'],
  ];
  // Byte order that knows every language's letters, and the same on every machine.
  if (binaries.major >= 17) args.push('--locale-provider=builtin', '--builtin-locale=C.UTF-8');
  const options = {
    cwd: data,
    ...(owners.named ?? {}),
    env: { PATH: '/usr/local/bin:/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC' },
    timeout: 120_000,
  };
  const initdb = join(binaries.bin, 'initdb');
  try {
    await run(initdb, [...args, '--lc-ctype=C.UTF-8'], options);
  } catch {
    // Not every machine has the locale C.UTF-8. A failed initdb leaves the directory empty.
    await run(initdb, args, options);
  }
}

/**
 * Only the service reaches a server's socket, and the service has checked who it lets in: it may
 * come as any role. Peer authentication holds even against someone who gets at the socket.
 */
function accessRules({ major }: Binaries): {
  method: 'peer' | 'trust';
  hba: string;
  ident: string;
} {
  const user = serviceUserName();
  if (major < 16 || user === null)
    return { method: 'trust', hba: 'local all all trust\n', ident: '' };
  return {
    method: 'peer',
    hba: 'local all all peer map=service\n',
    ident: `service "${user.replaceAll('"', '""')}" all\n`,
  };
}
