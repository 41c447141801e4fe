// Content of any size, in constant memory. A download is one read-only snapshot; an upload is one
// transaction that fills the chunks of a new content and takes the files' lock only at its end, so
// an upload that is cut off leaves nothing, and a slow one keeps nobody waiting.
import type { FileEntry } from '@coppice/contract';
import type pg from 'pg';
import {
  FileError,
  type FilesActor,
  type OpenFile,
  type Range,
  type WriteTarget,
} from '../../kernel/files.ts';
import * as store from './store.ts';

/** What one COPY reads and one INSERT writes. */
const pieceBytes = 4 * store.chunkBytes;
const blockBytes = 8 * store.chunkBytes;
const piecesAtOnce = 4;

/** Runs `work` in a transaction; `begin` is the statement that starts it. */
export async function inTransaction<T>(
  client: pg.Client,
  actor: FilesActor,
  begin: string,
  work: () => Promise<T>,
): Promise<T> {
  await client.query(begin);
  try {
    if (actor.symlinks === 'refuse') await client.query(`set local coppice.symlinks = 'refuse'`);
    const result = await work();
    await client.query('commit');
    return result;
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

export function readStream<T>(
  client: pg.Client,
  actor: FilesActor,
  path: string,
  { offset = 0, length, signal }: Range & { signal?: AbortSignal },
  consume: (file: OpenFile) => Promise<T>,
): Promise<T> {
  const begin = 'begin isolation level repeatable read read only';
  return inTransaction(client, actor, begin, async () => {
    await client.query('set local idle_in_transaction_session_timeout = 0');
    const entry = await store.stat(client, path, true);
    if (entry.type === 'directory') throw new FileError('EISDIR', `is a directory: ${path}`);
    const available = Math.max(0, Math.min(entry.size - offset, length ?? Number.MAX_SAFE_INTEGER));
    return consume({
      entry,
      length: available,
      chunks: pieces(client, entry.path, offset, available, signal),
    });
  });
}

/** The next pieces are on their way while the last ones are used. */
async function* pieces(
  client: pg.Client,
  path: string,
  offset: number,
  length: number,
  signal?: AbortSignal,
): AsyncGenerator<Buffer> {
  const batch = (from: number) =>
    store.readPieces(client, path, from, Math.min(batchBytes, offset + length - from), pieceBytes);
  const batchBytes = piecesAtOnce * pieceBytes;
  let next = length > 0 ? batch(offset) : undefined;
  for (let from = offset; next; from += batchBytes) {
    const current = await next;
    signal?.throwIfAborted();
    next = from + batchBytes < offset + length ? batch(from + batchBytes) : undefined;
    // Nobody awaits it if the reader leaves early.
    next?.catch(() => {});
    yield* current;
  }
}

/** `onStored` hears of every block that would have to be taken back. */
export function writeStream(
  client: pg.Client,
  actor: FilesActor,
  target: WriteTarget,
  source: AsyncIterable<Buffer>,
  onStored: (bytes: number) => void,
): Promise<FileEntry> {
  return inTransaction(client, actor, 'begin', async () => {
    await client.query('set local idle_in_transaction_session_timeout = 0');
    if (!(await store.mayWrite(client, actor.role)))
      throw new FileError('EACCES', `role ${actor.role} may not write files`);
    const roomBytes = await store.prepareUpload(client, target);
    const content = await store.newContent(client);

    const block = Buffer.allocUnsafeSlow(blockBytes);
    let filled = 0;
    let stored = 0;
    const flush = async () => {
      await store.storeChunks(
        client,
        content,
        stored / store.chunkBytes,
        block.subarray(0, filled),
      );
      stored += filled;
      onStored(filled);
      filled = 0;
    };
    for await (const bytes of source) {
      if (stored + filled + bytes.length > roomBytes)
        throw new FileError('EFBIG', 'the files of this database would exceed their quota');
      for (let taken = 0; taken < bytes.length; ) {
        const count = bytes.copy(block, filled, taken);
        taken += count;
        filled += count;
        if (filled === blockBytes) await flush();
      }
    }
    if (filled > 0) await flush();
    return store.adopt(client, target, content, stored);
  });
}
