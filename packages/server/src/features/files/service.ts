// The files of databases. Every operation is one transaction in the database itself, run as the role
// that asks, so its privileges decide; schema/database/0003-files.sql holds the rules. A database is
// awake only while an operation runs.
import type { FileEntry } from '@coppice/contract';
import type pg from 'pg';
import type { Sessions } from '../../engine/sessions.ts';
import { FileError, type Files, type FilesActor } from '../../kernel/files.ts';
import type { Logger } from '../../kernel/logger.ts';
import { isRetryable, toFileError } from './file-errors.ts';
import type { Reclaim } from './reclaim.ts';
import * as store from './store.ts';
import { inTransaction, readStream, writeStream } from './streams.ts';
import type { Watches } from './watches.ts';

export interface FilesLimits {
  /** Total size of a database's files. */
  quotaBytes: number;
}

export interface FilesDeps {
  /** For operations; these and the next keep prepared statements (`discard: false`). */
  sessions: Sessions;
  /** For streams, which last: apart, so that they cannot keep operations waiting. */
  streamSessions: Sessions;
  watches: Watches;
  reclaim: Reclaim;
  logger: Logger;
  limits: FilesLimits;
}

const attempts = 5;
const readAtOnceBytes = 16 * 1024 * 1024;
const listAtOnce = 10_000;

export function createFilesService(deps: FilesDeps): Files {
  const { sessions, streamSessions, watches, reclaim, logger, limits } = deps;
  const quotaSet = new Set<string>();

  async function run<T>(actor: FilesActor, work: (client: pg.Client) => Promise<T>): Promise<T> {
    const operation = (client: pg.Client) =>
      actor.symlinks === 'refuse'
        ? inTransaction(client, actor, 'begin', () => work(client))
        : work(client);
    return translated(actor, async () => {
      for (let attempt = 1; ; attempt++) {
        try {
          return await sessions.use(actor.databaseId, { role: actor.role }, operation);
        } catch (error) {
          if (!isRetryable(error) || attempt === attempts) throw error;
        }
      }
    });
  }

  async function change<T>(actor: FilesActor, work: (client: pg.Client) => Promise<T>): Promise<T> {
    await translated(actor, () => setQuota(actor.databaseId));
    return run(actor, work);
  }

  /** Once a process: the quota is a setting of the service, its keeper is the database. */
  async function setQuota(databaseId: string): Promise<void> {
    if (quotaSet.has(databaseId)) return;
    await sessions.use(databaseId, { role: 'postgres' }, (client) =>
      store.setQuota(client, limits.quotaBytes),
    );
    quotaSet.add(databaseId);
  }

  async function translated<T>(actor: FilesActor, work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      const failure = toFileError(error);
      if (failure.code === 'EIO' && failure.cause)
        logger.warn({ err: failure.cause, databaseId: actor.databaseId }, 'files');
      throw failure;
    }
  }

  return {
    stat: (actor, path, { follow = true } = {}) =>
      run(actor, (client) => store.stat(client, checkPath(path), follow)),
    readdir: (actor, path, { after, limit = listAtOnce } = {}) =>
      run(actor, (client) =>
        store.list(client, checkPath(path), after ?? null, Math.min(limit, listAtOnce)),
      ),
    readlink: (actor, path) => run(actor, (client) => store.readlink(client, checkPath(path))),

    async read(actor, path, range = {}) {
      const length = Math.min(range.length ?? readAtOnceBytes + 1, readAtOnceBytes + 1);
      const content = await run(actor, (client) =>
        store.read(client, checkPath(path), { ...range, length }),
      );
      if (content.length > readAtOnceBytes)
        throw new FileError('EFBIG', 'too large to read at once; read it as a stream');
      return content;
    },

    readStream: (actor, path, range, consume) =>
      translated(actor, () =>
        streamSessions.use(
          actor.databaseId,
          { role: 'postgres', signal: range.signal },
          async (client) => readStream(client, actor, checkPath(path), range, consume),
        ),
      ),

    write: (actor, target, content) =>
      change(actor, (client) =>
        store.write(client, { ...target, path: checkPath(target.path) }, content),
      ),

    async writeStream(actor, target, content, signal) {
      let storedBytes = 0;
      try {
        return await translated(actor, async () => {
          checkPath(target.path);
          await setQuota(actor.databaseId);
          return streamSessions.use(actor.databaseId, { role: 'postgres', signal }, (client) =>
            writeStream(client, actor, target, content, (bytes) => {
              storedBytes += bytes;
            }),
          );
        });
      } finally {
        if (storedBytes > 0) reclaim.after(actor.databaseId);
      }
    },

    batchWrite: (actor, files) =>
      change(actor, (client) =>
        inTransaction(client, actor, 'begin', async () => {
          const entries: FileEntry[] = [];
          for (const { content, path, ...options } of files) {
            const target = { operation: 'write' as const, path: checkPath(path), ...options };
            entries.push(await store.write(client, target, content));
          }
          return entries;
        }),
      ),

    truncate: (actor, path, size) =>
      change(actor, (client) => store.truncate(client, checkPath(path), size)),
    mkdir: (actor, path, { mode = 0o755, recursive = false } = {}) =>
      change(actor, (client) => store.mkdir(client, checkPath(path), mode, recursive)),

    async unlink(actor, path) {
      await change(actor, (client) => store.unlink(client, checkPath(path)));
      reclaim.after(actor.databaseId);
    },
    async rm(actor, path, { recursive = false, force = false } = {}) {
      await change(actor, (client) => store.rm(client, checkPath(path), recursive, force));
      reclaim.after(actor.databaseId);
    },

    rename: (actor, path, to) =>
      change(actor, (client) => store.rename(client, checkPath(path), checkPath(to))),
    symlink: (actor, path, target) =>
      change(actor, (client) => store.symlink(client, checkPath(path), checkPath(target))),
    chmod: (actor, path, mode) =>
      change(actor, (client) => store.chmod(client, checkPath(path), mode)),
    utimes: (actor, path, mtime) =>
      change(actor, (client) => store.utimes(client, checkPath(path), mtime)),

    async watch(actor, path, { recursive = true }, listener) {
      const entry = await run(actor, (client) => store.stat(client, checkPath(path), true));
      return translated(actor, () =>
        watches.add(actor.databaseId, { path: entry.path, recursive, listener }),
      );
    },
  };
}

/** What cannot even travel to the database as text; the rest is checked there. */
function checkPath(path: string): string {
  if (path.includes('\0') || !path.isWellFormed())
    throw new FileError('EINVAL', 'a path is Unicode text without NUL');
  return path;
}
