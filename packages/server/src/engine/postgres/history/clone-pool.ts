// Copying and linking files for cloneTree on threads of their own, a batch of files at a time.
import {
  closeSync,
  constants,
  copyFileSync,
  fchownSync,
  fstatSync,
  lchownSync,
  linkSync,
  openSync,
  readSync,
  writeSync,
} from 'node:fs';
import { availableParallelism } from 'node:os';
import type { Owner } from '../fleet.ts';
import { createThreads, serveJobs, type Threads } from '../threads.ts';
import { codeOf } from './errno.ts';

export interface CloneBatch {
  kind: 'copy' | 'link';
  source: string;
  target: string;
  /** Relative to both trees. */
  files: string[];
  owner: Owner | undefined;
}

export type ClonePool = Threads<CloneBatch>;

export const createClonePool = (
  size = Math.min(4, Math.max(2, availableParallelism())),
): ClonePool => createThreads<CloneBatch>(new URL(import.meta.url), { name: 'clone', size });

serveJobs(perform);

function perform({ kind, source, target, files, owner }: CloneBatch): number {
  const place = kind === 'link' ? linkFile : copy;
  for (const file of files) {
    const to = `${target}/${file}`;
    try {
      place(`${source}/${file}`, to, owner);
    } catch (error) {
      if (codeOf(error) !== 'ENOENT') throw error;
    }
  }
  return files.length;
}

/** Set when this thread has seen that the filesystem cannot share blocks. */
let cannotShare = false;

function copy(from: string, to: string, owner: Owner | undefined): void {
  if (!cannotShare)
    try {
      copyFileSync(from, to, constants.COPYFILE_FICLONE_FORCE);
      if (owner) lchownSync(to, owner.uid, owner.gid);
      return;
    } catch (error) {
      if (codeOf(error) === 'ENOENT') throw error;
      cannotShare = codeOf(error) === 'ENOTSUP' || codeOf(error) === 'ENOSYS';
    }
  copyBytes(from, to, owner);
}

let buffer: Buffer | undefined;

/**
 * Not copyFileSync: it truncates the new file, which makes ext4 write every one of them out when it
 * is closed instead of all together later, at half the speed.
 */
function copyBytes(from: string, to: string, owner: Owner | undefined): void {
  buffer ??= Buffer.allocUnsafeSlow(1 << 20);
  const source = openSync(from, constants.O_RDONLY | constants.O_NOFOLLOW);
  try {
    const flags = constants.O_WRONLY | constants.O_CREAT;
    const target = openSync(to, flags, fstatSync(source).mode & 0o777);
    try {
      if (owner) fchownSync(target, owner.uid, owner.gid);
      for (;;) {
        const length = readSync(source, buffer, 0, buffer.length, null);
        if (length === 0) break;
        for (let done = 0; done < length; ) done += writeSync(target, buffer, done, length - done);
      }
    } finally {
      closeSync(target);
    }
  } finally {
    closeSync(source);
  }
}

/** A file that can have no further name (too many already, another volume) is copied. */
function linkFile(from: string, to: string): void {
  try {
    linkSync(from, to);
  } catch (error) {
    if (codeOf(error) !== 'EMLINK' && codeOf(error) !== 'EXDEV') throw error;
    copy(from, to, undefined);
  }
}
