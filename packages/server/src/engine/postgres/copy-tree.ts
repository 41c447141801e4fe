// Copies and removes directory trees. A copy shares its blocks with the original where the
// filesystem can (XFS, btrfs, APFS). Synchronous, for the tree worker: a thousand small files are
// several times faster this way than one asynchronous call each.
import {
  chmodSync,
  chownSync,
  constants,
  copyFileSync,
  lchownSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readlinkSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import type { Owner } from './fleet.ts';

export interface CopyTreeOptions {
  owner: Owner | undefined;
  /** The same files under other names, where possible: for trees that never change. */
  link?: boolean;
}

/** Copies the tree `from` to the new directory `to`, which is private to its owner. */
export function copyTree(from: string, to: string, options: CopyTreeOptions): void {
  const { owner, link = false } = options;
  const copyDirectory = (below: string) => {
    mkdirSync(to + below, 0o700);
    if (owner) chownSync(to + below, owner.uid, owner.gid);
    for (const entry of readdirSync(from + below, { withFileTypes: true })) {
      const path = `${below}/${entry.name}`;
      if (entry.isDirectory()) copyDirectory(path);
      else if (entry.isFile()) {
        if (link && linked(from + path, to + path)) continue;
        copyFileSync(from + path, to + path, constants.COPYFILE_FICLONE);
        if (owner) chownSync(to + path, owner.uid, owner.gid);
      } else if (entry.isSymbolicLink()) {
        symlinkSync(readlinkSync(from + path), to + path);
        if (owner) lchownSync(to + path, owner.uid, owner.gid);
      }
    }
  };
  copyDirectory('');
  chmodSync(to, 0o700);
}

/** Not across filesystems, and not everywhere of another user's file. */
function linked(from: string, to: string): boolean {
  try {
    linkSync(from, to);
    return true;
  } catch {
    return false;
  }
}

export function giveTree(directory: string, owner: Owner): void {
  for (const entry of readdirSync(directory, { withFileTypes: true })) {
    const path = `${directory}/${entry.name}`;
    if (entry.isDirectory()) giveTree(path, owner);
    else lchownSync(path, owner.uid, owner.gid);
  }
  chownSync(directory, owner.uid, owner.gid);
}

export const removeTree = (path: string) =>
  rmSync(path, { recursive: true, force: true, maxRetries: 3 });

/** Bytes on disk of all files below; what vanishes meanwhile does not count. */
export function measureTree(directory: string, except: readonly string[] = []): number {
  let bytes = 0;
  for (const entry of readdirSync(directory, { withFileTypes: true })) {
    if (except.includes(entry.name)) continue;
    const path = `${directory}/${entry.name}`;
    if (entry.isDirectory()) bytes += measureTree(path);
    else bytes += lstatSync(path, { throwIfNoEntry: false })?.size ?? 0;
  }
  return bytes;
}
