// Bases: complete copies of a database's data directory, which replay of the log starts from. In a
// database's directory:
//
//   history/wal/              segments of the log that the server no longer needs
//   history/bases/<lsn>/      a base, named after where its replay starts; never changes
//     base.json               since when it can be used
//     data/                   the copy, with its backup_label
//   history/bases/.<…>        being made or being removed; of no use to anyone
//
// A database that came out of the pool has the template for its first base, without a copy of it. A
// branch has its parent's: under other names of the same files, so that either can go.
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type pg from 'pg';
import type { Fleet, InstancePaths, Owner } from '../fleet.ts';
import { syncFilesystem } from '../sync-filesystem.ts';
import type { ClonePool } from './clone-pool.ts';
import { cloneTree, fsyncPath, writeOwned } from './clone-tree.ts';
import { ifMissing } from './errno.ts';
import { type RunningCopy, skippedInCopy, whileCopyable } from './running-copy.ts';
import {
  listWal,
  readControlFile,
  replayStart,
  segmentAt,
  segmentBytesOf,
  walDirectories,
} from './wal.ts';

export interface Base {
  /** `undefined`: the template. */
  name: string | undefined;
  data: string;
  startLsn: bigint;
  /** It was stopped in order: replay begins without syncing its files. */
  isStopped: boolean;
  /** Replay cannot stop before this instant; microseconds since 1970. */
  usableFromMicros: bigint;
}

interface BaseFile {
  usableFromMicros: string;
}

const directoryOf = (history: string) => join(history, 'bases');
const baseName = (lsn: bigint) => lsn.toString(16).padStart(16, '0');

/** The bases of a database, oldest first. */
export async function listBases(fleet: Fleet, id: string): Promise<Base[]> {
  const paths = fleet.paths(id);
  const bases: Base[] = [];
  const template = await fleet.templateData(id);
  if (template !== undefined) {
    const { at, redo } = await readControlFile(template);
    // The template stays; what makes it a base is the log from there on.
    const directories = walDirectories(paths);
    const first = segmentAt(redo, await segmentBytesOf(directories));
    if ((await listWal(directories)).some(({ segment }) => segment === first))
      bases.push({
        name: undefined,
        data: template,
        startLsn: redo,
        isStopped: true,
        usableFromMicros: BigInt(at.getTime()) * 1000n,
      });
  }
  const directory = directoryOf(paths.history);
  for (const name of (await readdir(directory).catch(ifMissing([] as string[]))).sort()) {
    if (name.startsWith('.')) continue;
    const file = JSON.parse(await readFile(join(directory, name, 'base.json'), 'utf8')) as BaseFile;
    const data = join(directory, name, 'data');
    bases.push({
      name,
      data,
      ...(await replayStart(data)),
      usableFromMicros: BigInt(file.usableFromMicros),
    });
  }
  return bases;
}

/** The newest base from which `atMicros` can be reached. */
export function baseFor(bases: readonly Base[], atMicros: bigint): Base | undefined {
  return bases.findLast((base) => base.usableFromMicros <= atMicros);
}

/** A copy of the running server's data directory, and what it takes to start it. */
export async function copyRunning(
  pool: ClonePool,
  client: pg.Client,
  source: string,
  target: string,
  options: { owner?: Owner | undefined; signal?: AbortSignal | undefined } = {},
): Promise<RunningCopy> {
  const copy = await whileCopyable(client, async () => {
    await cloneTree(pool, source, target, { ...options, skip: skippedInCopy });
    await writeFile(join(target, 'global/pg_control'), (await readControlFile(source)).bytes);
  });
  await writeOwned(join(target, 'backup_label'), copy.label, options.owner);
  return copy;
}

/** Makes a base of a running database; it counts when this returns. */
export async function takeBase(
  pool: ClonePool,
  client: pg.Client,
  paths: InstancePaths,
  signal?: AbortSignal,
): Promise<RunningCopy> {
  await makeHistory(paths);
  const draft = join(directoryOf(paths.history), '.draft');
  await rm(draft, { recursive: true, force: true });
  await mkdir(draft);
  const copy = await copyRunning(pool, client, paths.data, join(draft, 'data'), { signal });
  await keepBase(paths, draft, copy.startLsn, copy.stoppedAtMicros);
  return copy;
}

/** Gives a draft, whose `data/` is complete, its name among the bases. */
export async function keepBase(
  paths: InstancePaths,
  draft: string,
  startLsn: bigint,
  usableFromMicros: bigint,
): Promise<void> {
  const file: BaseFile = { usableFromMicros: String(usableFromMicros) };
  await writeFile(join(draft, 'base.json'), JSON.stringify(file));
  await syncFilesystem(draft);
  const directory = directoryOf(paths.history);
  await rename(draft, join(directory, baseName(startLsn)));
  await fsyncPath(directory);
}

/** Gives another database a base of its own that is, on disk, the same one. */
export async function shareBase(pool: ClonePool, base: Base, paths: InstancePaths): Promise<void> {
  await makeHistory(paths);
  const to = join(directoryOf(paths.history), base.name ?? baseName(base.startLsn));
  await mkdir(to);
  await cloneTree(pool, base.data, join(to, 'data'), { kind: 'link' });
  const file: BaseFile = { usableFromMicros: String(base.usableFromMicros) };
  await writeFile(join(to, 'base.json'), JSON.stringify(file));
}

export async function removeBase(paths: InstancePaths, name: string): Promise<void> {
  const directory = directoryOf(paths.history);
  const doomed = join(directory, `.removed-${name}`);
  await rename(join(directory, name), doomed);
  await fsyncPath(directory);
  await rm(doomed, { recursive: true, force: true });
}

/** What a crash left half-made or half-removed. */
export async function clearLeftovers(paths: InstancePaths): Promise<void> {
  const directory = directoryOf(paths.history);
  for (const name of await readdir(directory).catch(ifMissing([] as string[])))
    if (name.startsWith('.')) await rm(join(directory, name), { recursive: true, force: true });
}

/** Not recursive: a database that is gone must not come back as an empty directory. */
export async function makeHistory(paths: InstancePaths): Promise<void> {
  for (const directory of [paths.history, join(paths.history, 'wal'), directoryOf(paths.history)])
    await mkdir(directory, { mode: 0o700 }).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'EEXIST') throw error;
    });
}
