// The format of a backup: one self-contained stream of bytes, compressed and checksummed.
//
//   "coppice backup\n"
//   'H' header   JSON: format version, what it is a backup of
//   'B' block*   zstd of 1 MiB of the content, files without regard to where blocks end
//   'E' end      JSON: number of files, SHA-256 of everything before
//
// Each of these is a record: kind (1) ‖ length (4, big-endian) ‖ CRC-32 of kind, length and payload
// (4) ‖ payload. The content, in turn, is a sequence of parts: kind (1) ‖ length (4) ‖ payload.
//
//   'f' file     its path; a directory's ends in '/'
//   'd' data*    a piece of it
//   'c' closed   JSON: size and SHA-256 of the file
//
// A damaged byte is found by the checksum of its record, which says where, and in which file; the
// digests of files and of the whole find records that are missing, doubled or swapped.
import { createHash, type Hash } from 'node:crypto';
import type { Readable, Writable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { promisify } from 'node:util';
import { crc32, zstdCompress, zstdDecompress } from 'node:zlib';

const magic = Buffer.from('coppice backup\n');
const formatVersion = 1;
const blockBytes = 1 << 20;
const partLimitBytes = 1 << 20;
// A record is at most a block that did not compress, or a little JSON.
const recordLimitBytes = 2 * blockBytes;
const blocksAtOnce = 3;

const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);

/** What the backup says of itself; readable without anything else at hand. */
export type BackupAbout = Record<string, string | number | null>;

export class DamagedBackup extends Error {
  constructor(what: string, at: number, file?: string) {
    super(`backup is damaged at byte ${at}${file === undefined ? '' : ` (${file})`}: ${what}`);
    this.name = 'DamagedBackup';
  }
}

export type AddFile = (path: string, content: AsyncIterable<Buffer> | Buffer) => Promise<void>;

/** Writes a backup and ends `sink`; `fill` adds its files, one after the other. */
export async function writeBackup(
  sink: Writable,
  about: BackupAbout,
  fill: (add: AddFile) => Promise<void>,
  signal?: AbortSignal,
): Promise<void> {
  const records = createRecordWriter(sink, signal);
  const content = createBlockWriter((block) => records.put('B', block));
  let files = 0;

  async function add(path: string, pieces: AsyncIterable<Buffer> | Buffer): Promise<void> {
    await content.part('f', Buffer.from(path));
    const digest = createHash('sha256');
    let size = 0;
    for await (const piece of Buffer.isBuffer(pieces) ? [pieces] : pieces)
      for (let at = 0; at < piece.length; at += partLimitBytes) {
        const bytes = piece.subarray(at, at + partLimitBytes);
        digest.update(bytes);
        size += bytes.length;
        await content.part('d', bytes);
      }
    await content.part('c', json({ size, sha256: digest.digest('hex') }));
    files++;
  }

  try {
    await records.begin();
    await records.put('H', json({ ...about, format: formatVersion }));
    await fill(add);
    await content.flush();
    await records.put('E', json({ files, sha256: records.digest() }));
    await records.end();
  } catch (error) {
    sink.destroy(error as Error);
    throw error;
  }
}

const json = (value: unknown) => Buffer.from(JSON.stringify(value));

function createRecordWriter(sink: Writable, signal: AbortSignal | undefined) {
  const whole = createHash('sha256');
  // Listened to from the beginning: an error between two writes must not go unheard.
  const ended = finished(sink);
  ended.catch(() => {});

  async function write(bytes: Buffer): Promise<void> {
    signal?.throwIfAborted();
    whole.update(bytes);
    if (sink.write(bytes)) return;
    await Promise.race([new Promise<void>((resolve) => sink.once('drain', resolve)), ended]);
  }

  return {
    begin: () => write(magic),
    async put(kind: string, payload: Buffer): Promise<void> {
      const head = Buffer.alloc(9);
      head.write(kind, 0, 'latin1');
      head.writeUInt32BE(payload.length, 1);
      head.writeUInt32BE(crc32(payload, crc32(head.subarray(0, 5))), 5);
      await write(head);
      await write(payload);
    },
    digest: () => whole.copy().digest('hex'),
    async end(): Promise<void> {
      sink.end();
      await ended;
    },
  };
}

/** Gathers parts into blocks; a few are compressed at a time and put in order. */
function createBlockWriter(put: (block: Buffer) => Promise<void>) {
  let block = Buffer.allocUnsafe(blockBytes);
  let used = 0;
  const pending: Promise<Buffer>[] = [];

  async function append(bytes: Buffer): Promise<void> {
    for (let at = 0; at < bytes.length; ) {
      const count = bytes.copy(block, used, at);
      at += count;
      used += count;
      if (used === blockBytes) await close();
    }
  }
  async function close(): Promise<void> {
    const compressed = compress(block.subarray(0, used), { chunkSize: blockBytes });
    compressed.catch(() => {});
    pending.push(compressed);
    block = Buffer.allocUnsafe(blockBytes);
    used = 0;
    if (pending.length >= blocksAtOnce) await put(await pending.shift()!);
  }

  return {
    async part(kind: string, payload: Buffer): Promise<void> {
      const head = Buffer.alloc(5);
      head.write(kind, 0, 'latin1');
      head.writeUInt32BE(payload.length, 1);
      await append(head);
      await append(payload);
    },
    async flush(): Promise<void> {
      if (used > 0) await close();
      for (const compressed of pending.splice(0)) await put(await compressed);
    },
  };
}

export interface BackupReader {
  /** Throw from any of these to stop. */
  about?(about: BackupAbout): Promise<void> | void;
  file?(path: string): Promise<void> | void;
  data?(bytes: Buffer): Promise<void> | void;
  closed?(): Promise<void> | void;
}

export interface BackupContents {
  about: BackupAbout;
  sizeBytes: number;
  sha256: string;
}

/** Reads a whole backup and checks all of it; throws a `DamagedBackup` that says where. */
export async function readBackup(
  source: Readable,
  reader: BackupReader = {},
  signal?: AbortSignal,
): Promise<BackupContents> {
  try {
    return await readAll(source, reader, signal);
  } finally {
    source.destroy();
  }
}

async function readAll(
  source: Readable,
  reader: BackupReader,
  signal: AbortSignal | undefined,
): Promise<BackupContents> {
  const records = createRecordReader(source);
  /** The last file that is known to have begun. */
  let path: string | undefined;
  let file: { digest: Hash; size: number } | undefined;
  let files = 0;
  const damaged = (what: string) => new DamagedBackup(what, records.position, path);
  records.onDamage(damaged);

  const about = await records.header();
  await reader.about?.(about);
  for await (const { kind, payload } of parts(records.blocks(), damaged)) {
    signal?.throwIfAborted();
    if (kind === 'f' && !file) {
      path = safePath(payload.toString('utf8'), damaged);
      file = { digest: createHash('sha256'), size: 0 };
      await reader.file?.(path);
    } else if (kind === 'd' && file) {
      file.digest.update(payload);
      file.size += payload.length;
      await reader.data?.(payload);
    } else if (kind === 'c' && file) {
      const closed = parse<{ size: number; sha256: string }>(payload, damaged);
      if (closed.size !== file.size || closed.sha256 !== file.digest.digest('hex'))
        throw damaged('the content does not match its digest');
      file = undefined;
      files++;
      await reader.closed?.();
    } else throw damaged('parts out of order');
  }
  const end = await records.end();
  if (file || end.files !== files) throw damaged('files are missing');
  return { about, sizeBytes: records.position, sha256: end.sha256 };
}

/** Reads only what the backup says of itself. */
export async function readBackupAbout(source: Readable): Promise<BackupAbout> {
  try {
    return await createRecordReader(source).header();
  } finally {
    source.destroy();
  }
}

type Damaged = (what: string) => DamagedBackup;

function createRecordReader(source: Readable) {
  const bytes = createByteSource(source);
  const whole = createHash('sha256');
  let damaged: Damaged = (what) => new DamagedBackup(what, bytes.position);
  let last: { kind: string; payload: Buffer; digest: string } | undefined;

  /** The next record; `undefined` at the end of the stream. */
  async function next(): Promise<{ kind: string; payload: Buffer; digest: string } | undefined> {
    const head = await bytes.take(9);
    if (!head) return undefined;
    if (head.length < 9) throw damaged('it ends too early');
    const length = head.readUInt32BE(1);
    if (length > recordLimitBytes) throw damaged('a record is too long');
    const payload = length === 0 ? Buffer.alloc(0) : await bytes.take(length);
    if (!payload || payload.length < length) throw damaged('it ends too early');
    if (crc32(payload, crc32(head.subarray(0, 5))) !== head.readUInt32BE(5))
      throw damaged('a checksum does not match');
    const digest = head[0] === 'E'.charCodeAt(0) ? whole.copy().digest('hex') : '';
    whole.update(head).update(payload);
    return { kind: String.fromCharCode(head[0]!), payload, digest };
  }

  return {
    get position() {
      return bytes.position;
    },
    /** Whoever knows which file is being read says so in the error. */
    onDamage(make: Damaged): void {
      damaged = make;
    },
    async header(): Promise<BackupAbout> {
      const begin = await bytes.take(magic.length);
      if (!begin?.equals(magic)) throw damaged('it does not begin as a backup does');
      whole.update(begin);
      const record = await next();
      if (record?.kind !== 'H') throw damaged('it does not begin with a header');
      const about = parse<BackupAbout>(record.payload, damaged);
      if (about.format !== formatVersion)
        throw new Error(`backup has format ${about.format}; this version reads ${formatVersion}`);
      return about;
    },
    /** The content, a block at a time. */
    async *blocks(): AsyncGenerator<Buffer> {
      for (last = await next(); last?.kind === 'B'; last = await next())
        yield await decompress(last.payload, {
          maxOutputLength: blockBytes,
          chunkSize: blockBytes,
        }).catch(() => {
          throw damaged('a block cannot be decompressed');
        });
    },
    async end(): Promise<{ files: number; sha256: string }> {
      if (last?.kind !== 'E') throw damaged(last ? 'records out of order' : 'it ends too early');
      const { payload, digest } = last;
      const end = parse<{ files: number; sha256: string }>(payload, damaged);
      if (end.sha256 !== digest) throw damaged('the whole does not match its digest');
      if (await bytes.take(1)) throw damaged('there is something after its end');
      return end;
    },
  };
}

async function* parts(
  blocks: AsyncIterable<Buffer>,
  damaged: Damaged,
): AsyncGenerator<{ kind: string; payload: Buffer }> {
  const bytes = createByteSource(blocks);
  for (;;) {
    const head = await bytes.take(5);
    if (!head) return;
    const length = head.length < 5 ? 0 : head.readUInt32BE(1);
    if (head.length < 5 || length > partLimitBytes) throw damaged('parts cannot be told apart');
    const payload = length === 0 ? Buffer.alloc(0) : await bytes.take(length);
    if (!payload || payload.length < length) throw damaged('a part ends too early');
    yield { kind: String.fromCharCode(head[0]!), payload };
  }
}

function createByteSource(source: AsyncIterable<Buffer>) {
  const iterator = source[Symbol.asyncIterator]();
  let held: Buffer[] = [];
  let heldBytes = 0;
  let position = 0;
  return {
    get position() {
      return position;
    },
    /** The next `length` bytes; fewer if the stream ends before, `undefined` at its end. */
    async take(length: number): Promise<Buffer | undefined> {
      while (heldBytes < length) {
        const { value, done } = await iterator.next();
        if (done) break;
        held.push(value);
        heldBytes += value.length;
      }
      if (heldBytes === 0) return undefined;
      const all = held.length === 1 ? held[0]! : Buffer.concat(held);
      const taken = all.subarray(0, length);
      held = taken.length < all.length ? [all.subarray(taken.length)] : [];
      heldBytes = all.length - taken.length;
      position += taken.length;
      return taken;
    },
  };
}

function parse<T>(payload: Buffer, damaged: Damaged): T {
  try {
    return JSON.parse(payload.toString('utf8')) as T;
  } catch {
    throw damaged('a record cannot be read');
  }
}

/** A path must stay below the directory it is restored to, whoever wrote it; `x/` is a directory. */
function safePath(path: string, damaged: Damaged): string {
  const names = path.replace(/\/$/, '').split('/');
  if (path.includes('\0') || names.some((name) => name === '' || name === '.' || name === '..'))
    throw damaged('a path leads outside');
  return path;
}
