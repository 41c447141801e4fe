// Brings new databases to disk right after they have been answered. A killed service loses nothing
// either way; a power cut within these moments loses a database that nobody has used yet: the first
// wake waits for its files, and the first commit inside it brings its name to disk with it.
import type { Logger } from '../../kernel/logger.ts';
import { syncInstance } from './instance-record.ts';
import { syncFilesystem } from './sync-filesystem.ts';

export interface LaterSyncs {
  /** `isSynced`: only its name and its record are new. */
  add(root: string, isSynced: boolean): void;
  /** Settles when the files of `root` are on disk. */
  filesOf(root: string): Promise<void>;
  settled(): Promise<void>;
}

export function createLaterSyncs(logger: Logger): LaterSyncs {
  const waiting: string[] = [];
  const unsynced = new Map<string, Promise<void>>();
  let running: Promise<void> | undefined;

  // One at a time: more would hold threads of the pool that others need.
  async function run(): Promise<void> {
    for (let root = waiting.shift(); root !== undefined; root = waiting.shift())
      await syncInstance(root).catch((error) => report(error, root));
    running = undefined;
  }

  function report(error: NodeJS.ErrnoException, root: string | undefined): void {
    // Deleted in the meantime.
    if (error.code !== 'ENOENT') logger.warn({ err: error, root }, 'cannot sync a database');
  }

  return {
    add(root, isSynced) {
      if (!isSynced) {
        const done = syncFilesystem(root)
          .catch((error) => report(error, root))
          .finally(() => unsynced.delete(root));
        unsynced.set(root, done);
        return;
      }
      waiting.push(root);
      running ??= run();
    },
    filesOf: (root) => unsynced.get(root) ?? Promise.resolve(),
    async settled() {
      await Promise.all([running, ...unsynced.values()]);
    },
  };
}
