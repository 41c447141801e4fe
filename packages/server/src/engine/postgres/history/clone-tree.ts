// Copies a directory tree: block sharing (copy on write) where the filesystem can, which is found
// out by trying, else a parallel copy inside the kernel. Owner is set, modes are kept; anything
// that is neither a file nor a directory is left out. The work is done by a few threads, so that
// thousands of file operations neither hold up the service nor fill its thread pool.
import { constants } from 'node:fs';
import { copyFile, lchown, mkdir, open, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Owner } from '../fleet.ts';
import type { CloneBatch, ClonePool } from './clone-pool.ts';
import { codeOf, ifMissing } from './errno.ts';

export interface CloneOptions {
  /** Who gets the copies; `undefined`: the service itself. */
  owner?: Owner | undefined;
  /** Says of a path relative to the source whether it is left out; a directory with all it holds. */
  skip?: ((path: string, isDirectory: boolean) => boolean) | undefined;
  /** `link`: the same files under other names, for trees that never change. */
  kind?: 'copy' | 'link';
  signal?: AbortSignal | undefined;
}

// Small enough that every thread has work, large enough that handing it out costs nothing.
const filesInBatch = 24;

/** Files of a data directory that is in use come and go: what is missing by now is left out. */
export async function cloneTree(
  pool: ClonePool,
  source: string,
  target: string,
  { owner, skip, kind = 'copy', signal }: CloneOptions = {},
): Promise<void> {
  const batches: Promise<number>[] = [];
  let files: string[] = [];
  const flush = () => {
    if (files.length > 0) batches.push(pool.run({ kind, source, target, files, owner }));
    files = [];
  };

  async function walk(path: string): Promise<void> {
    signal?.throwIfAborted();
    const to = join(target, path);
    const entries = await readdir(join(source, path), { withFileTypes: true }).catch(ifMissing([]));
    await mkdir(to, { mode: 0o700 }).catch((error: unknown) => {
      // The top may be there already, made by whoever chose its owner.
      if (path !== '' || codeOf(error) !== 'EEXIST') throw error;
    });
    if (owner) await lchown(to, owner.uid, owner.gid);
    const directories: string[] = [];
    for (const entry of entries) {
      const name = path === '' ? entry.name : `${path}/${entry.name}`;
      if (skip?.(name, entry.isDirectory())) continue;
      if (entry.isDirectory()) directories.push(name);
      else if (entry.isFile() && files.push(name) >= filesInBatch) flush();
    }
    await Promise.all(directories.map(walk));
  }

  let failure: unknown;
  await walk('').catch((error: unknown) => {
    failure = error ?? new Error('aborted');
  });
  flush();
  // Whatever happened, no thread works on the tree any more when this returns.
  for (const outcome of await Promise.allSettled(batches))
    if (outcome.status === 'rejected') failure ??= outcome.reason;
  signal?.throwIfAborted();
  if (failure) throw failure;
}

/** Copies or links files of one directory into another. */
export async function cloneFiles(
  pool: ClonePool,
  files: readonly string[],
  batch: Omit<CloneBatch, 'files'>,
): Promise<void> {
  const batches: Promise<number>[] = [];
  for (let at = 0; at < files.length; at += filesInBatch)
    batches.push(pool.run({ ...batch, files: files.slice(at, at + filesInBatch) }));
  for (const outcome of await Promise.allSettled(batches))
    if (outcome.status === 'rejected') throw outcome.reason;
}

/** Whether files below `directory` can share blocks. */
export async function canShareBlocks(directory: string): Promise<boolean> {
  const from = join(directory, `.share-blocks-${process.pid}`);
  const to = `${from}-copy`;
  try {
    await writeFile(from, Buffer.alloc(4096));
    await copyFile(from, to, constants.COPYFILE_FICLONE_FORCE);
    return true;
  } catch {
    return false;
  } finally {
    await rm(from, { force: true });
    await rm(to, { force: true });
  }
}

/** Writes a file that only its owner may read. */
export async function writeOwned(
  path: string,
  content: string,
  owner: Owner | undefined,
): Promise<void> {
  await writeFile(path, content, { mode: 0o600 });
  if (owner) await lchown(path, owner.uid, owner.gid);
}

/** Makes a file, or the names in a directory, survive a power cut. */
export async function fsyncPath(path: string): Promise<void> {
  const handle = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW);
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Bytes that the files below `directory` take on disk, each counted as if it were alone. */
export async function diskBytes(directory: string): Promise<number> {
  let bytes = 0;
  const entries = await readdir(directory, { withFileTypes: true }).catch(ifMissing([]));
  for (const entry of entries) {
    const path = join(directory, entry.name);
    if (entry.isDirectory()) bytes += await diskBytes(path);
    else if (entry.isFile())
      bytes += (await stat(path).catch(ifMissing({ blocks: 0 }))).blocks * 512;
  }
  return bytes;
}
