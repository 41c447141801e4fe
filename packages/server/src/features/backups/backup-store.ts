// Where backups are kept: one object each, whole or not there at all. An object store can take the
// directory's place by implementing this interface.
import { createReadStream, createWriteStream } from 'node:fs';
import { mkdir, open, readdir, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';

export interface BackupStore {
  /** Stores what `write` writes; the object is there, durably, when this resolves. */
  put(id: string, write: (sink: Writable) => Promise<void>): Promise<void>;
  /** Throws `MissingBackup`. */
  open(id: string): Promise<Readable>;
  /** Also what an interrupted `put` left. Unknown ids are fine. */
  delete(id: string): Promise<void>;
  list(): Promise<{ id: string; sizeBytes: number }[]>;
}

export class MissingBackup extends Error {
  constructor(id: string) {
    super(`there is no backup ${id} in the store`);
    this.name = 'MissingBackup';
  }
}

const suffix = '.backup';
const bufferBytes = 1 << 20;

/** Files `<id>.backup`; one that is being written is called `<id>.partial`. */
export function createDirectoryStore(directory: string): BackupStore {
  const pathOf = (id: string) => join(directory, checked(id) + suffix);
  const partialOf = (id: string) => join(directory, `${checked(id)}.partial`);

  return {
    async put(id, write) {
      await mkdir(directory, { recursive: true, mode: 0o700 });
      const partial = partialOf(id);
      try {
        await write(
          createWriteStream(partial, { mode: 0o600, flush: true, highWaterMark: bufferBytes }),
        );
        await rename(partial, pathOf(id));
        await syncDirectory(directory);
      } catch (error) {
        await rm(partial, { force: true });
        throw error;
      }
    },

    async open(id) {
      const path = pathOf(id);
      if (!(await stat(path).catch(() => null))) throw new MissingBackup(id);
      return createReadStream(path, { highWaterMark: bufferBytes });
    },

    async delete(id) {
      await rm(partialOf(id), { force: true });
      await rm(pathOf(id), { force: true });
    },

    async list() {
      const names = await readdir(directory).catch((error: NodeJS.ErrnoException) => {
        if (error.code === 'ENOENT') return [];
        throw error;
      });
      return Promise.all(
        names
          .filter((name) => name.endsWith(suffix))
          .map(async (name) => ({
            id: name.slice(0, -suffix.length),
            sizeBytes: (await stat(join(directory, name))).size,
          })),
      );
    },
  };
}

/** An id becomes part of a path, and an operator types it. */
function checked(id: string): string {
  if (!/^bkp_[a-z0-9]+$/.test(id)) throw new MissingBackup(id);
  return id;
}

async function syncDirectory(directory: string): Promise<void> {
  const handle = await open(directory);
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
