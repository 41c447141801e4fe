// Where things lie (the picture is in fleet.ts), and the lock that keeps a second service out.
import { createHash } from 'node:crypto';
import { chmodSync, lstatSync, mkdirSync, mkdtempSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import type { InstancePaths } from './fleet.ts';
import { isRoot } from './owners.ts';

export interface Layout {
  readonly dataDir: string;
  readonly control: string;
  readonly instances: string;
  readonly drafts: string;
  readonly pool: string;
  readonly templates: string;
  readonly trash: string;
  /** Short enough for socket addresses, and closed to everyone else. */
  readonly sockets: string;
}

export const pathsIn = (root: string): InstancePaths => ({
  root,
  data: join(root, 'data'),
  history: join(root, 'history'),
});

export function createLayout(givenDataDir: string): Layout {
  mkdirSync(givenDataDir, { recursive: true });
  const dataDir = realpathSync(givenDataDir);
  const below = (name: string, mode: number) => {
    const path = join(dataDir, name);
    mkdirSync(path, { recursive: true });
    chmodSync(path, mode);
    return path;
  };
  return {
    dataDir,
    control: below('control', 0o711),
    instances: below('instances', 0o711),
    drafts: below('drafts', 0o711),
    pool: below('pool', 0o711),
    templates: below('templates', 0o711),
    trash: below('trash', 0o700),
    sockets: socketRoot(dataDir),
  };
}

/**
 * A socket's address holds at most 107 bytes (103 on macOS), so sockets live in a short directory of
 * their own, named after the data directory.
 */
function socketRoot(dataDir: string): string {
  const uid = process.getuid?.() ?? 0;
  const name = `coppice-${createHash('sha256').update(`${uid}:${dataDir}`).digest('hex').slice(0, 12)}`;
  for (const parent of isRoot() ? ['/run', '/tmp'] : ['/tmp']) {
    const path = join(parent, name);
    try {
      mkdirSync(path, { recursive: false });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') continue;
    }
    const found = lstatSync(path);
    // In /tmp anyone may have made it before us: take it only if it is ours.
    if (!found.isDirectory() || found.uid !== uid) continue;
    chmodSync(path, socketRootMode());
    return path;
  }
  const path = mkdtempSync('/tmp/coppice-');
  chmodSync(path, socketRootMode());
  return path;
}

/** As root the instances' own uids pass through on the way to their own directories. */
const socketRootMode = () => (isRoot() ? 0o711 : 0o700);

/**
 * Holds the data directory for this process until it ends, however it ends: an exclusive lock of
 * SQLite is a lock of the kernel on the file. Returns how to give it back.
 */
export function lockDataDirectory(dataDir: string): () => void {
  const lock = new DatabaseSync(join(dataDir, 'lock'));
  try {
    lock.exec('pragma locking_mode = exclusive; begin exclusive');
  } catch (error) {
    lock.close();
    throw new DataDirectoryInUse(dataDir, { cause: error });
  }
  return () => lock.close();
}

export class DataDirectoryInUse extends Error {
  constructor(dataDir: string, options: { cause?: unknown }) {
    super(`another service is using the data directory ${dataDir}; stop it first`, options);
    this.name = 'DataDirectoryInUse';
  }
}
