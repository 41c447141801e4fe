// Content of any size, in constant memory. A download is one read-only snapshot; an upload is one
// transaction that fills the chunks of a new content and takes the files' lock only at its end, so
// an upload that is cut off leaves nothing, and a slow one keeps nobody waiting. Both go straight to
// the table of chunks, as the supervisor, once the role that asks is known to have the right.
import type { FileEntry } from '@coppice/contract';
import type pg from 'pg';
import {
  FileError,
  type FilesActor,
  type OpenFile,
  type Range,
  type WriteTarget,
} from '../../kernel/files.ts';
import { copyIn, copyOut } from './copy-protocol.ts';
import * as store from './store.ts';

const { chunkBytes } = store;
const zeros = Buffer.alloc(chunkBytes);

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
  { offset = 0, length }: Range,
  consume: (file: OpenFile) => Promise<T>,
): Promise<T> {
  const begin = 'begin isolation level repeatable read read only';
  return inTransaction(client, actor, begin, async () => {
    await client.query('set local idle_in_transaction_session_timeout = 0');
    if (!(await store.may(client, actor.role, 'read')))
      throw new FileError('EACCES', `role ${actor.role} may not read files`);
    const { entry, contentId } = await store.findContent(client, path);
    const end = Math.min(entry.size, offset + (length ?? entry.size));
    return consume({
      entry,
      length: Math.max(0, end - offset),
      chunks: content(client, contentId, offset, end),
    });
  });
}

/** The bytes from `offset` to `end`; what no chunk holds is zeros. */
async function* content(
  client: pg.Client,
  contentId: string,
  offset: number,
  end: number,
): AsyncGenerator<Buffer> {
  if (end <= offset) return;
  let position = offset;
  for await (const { n, at, bytes } of copyOut(
    client,
    store.selectChunks(
      contentId,
      Math.floor(offset / chunkBytes),
      Math.floor((end - 1) / chunkBytes),
    ),
  )) {
    const start = n * chunkBytes + at;
    yield* zerosBetween(position, Math.min(start, end));
    const wanted = bytes.subarray(Math.max(0, offset - start), Math.max(0, end - start));
    if (wanted.length > 0) yield wanted;
    position = Math.max(position, start + bytes.length);
  }
  yield* zerosBetween(position, end);
}

function* zerosBetween(from: number, to: number): Generator<Buffer> {
  for (let at = from; at < to; at += zeros.length)
    yield zeros.subarray(0, Math.min(zeros.length, to - at));
}

/** `onStored` hears of bytes that would have to be taken back. */
export function writeStream(
  client: pg.Client,
  actor: FilesActor,
  target: WriteTarget,
  source: AsyncIterable<Buffer>,
  onStored: (bytes: number) => void,
): Promise<FileEntry> {
  return inTransaction(client, actor, 'begin', async () => {
    await client.query('set local idle_in_transaction_session_timeout = 0');
    if (!(await store.may(client, actor.role, 'write')))
      throw new FileError('EACCES', `role ${actor.role} may not write files`);
    const roomBytes = await store.prepareUpload(client, target);
    const contentId = await store.newContent(client);
    const stored = await copyIn(
      client,
      'coppice.fs_chunks',
      BigInt(contentId),
      chunkBytes,
      limited(source, roomBytes, onStored),
    );
    return store.adopt(client, target, contentId, stored);
  });
}

async function* limited(
  source: AsyncIterable<Buffer>,
  limitBytes: number,
  onBytes: (bytes: number) => void,
): AsyncGenerator<Buffer> {
  let totalBytes = 0;
  for await (const bytes of source) {
    totalBytes += bytes.length;
    if (totalBytes > limitBytes)
      throw new FileError('EFBIG', 'the files of this database would exceed their quota');
    yield bytes;
    onBytes(bytes.length);
  }
}
