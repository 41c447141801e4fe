// The format of a backup: one self-contained stream of bytes, compressed and checksummed.
//
//   "coppice backup\n"                                 magic
//   record*                                            kind (1) ‖ length (4, big-endian) ‖ CRC-32 of
//                                                      kind, length and payload (4) ‖ payload
//   'H' header    JSON: format version, what it is a backup of
//   'F' file      JSON: path                           begins a file; a directory's ends in '/'
//   'D' data      at most 1 MiB of it, zstd
//   'C' closed    JSON: size, SHA-256 of the content   ends a file
//   'E' end       JSON: number of files, SHA-256 of everything before this record
//
// A damaged byte is found by the checksum of its record, which says where and in which file; the
// digests at the end of files and of the whole find records that are missing, doubled or swapped.
import { createHash } from 'node:crypto';
import type { Readable, Writable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { promisify } from 'node:util';
import { crc32, zstdCompress, zstdDecompress } from 'node:zlib';

const magic = Buffer.from('coppice backup\n');
const formatVersion = 1;
const chunkBytes = 1 << 20;
const headBytes = 9;
// A record is at most a chunk that did not compress, or a little JSON.
const recordLimitBytes = 2 * chunkBytes;
const compressionsAtOnce = 4;

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

/** Writes a backup and ends `sink`; `fill` adds its files. */
export async function writeBackup(
  sink: Writable,
  about: BackupAbout,
  fill: (add: AddFile) => Promise<void>,
  signal?: AbortSignal,
): Promise<void> {
  const whole = createHash('sha256');
  let files = 0;
  // Its own listener: an error between two writes must not go unheard.
  const end = finished(sink);
  end.catch(() => {});

  async function put(bytes: Buffer): Promise<void> {
    signal?.throwIfAborted();
    whole.update(bytes);
    if (!sink.write(bytes)) await Promise.race([drained(sink), end]);
  }
  async function record(kind: string, payload: Buffer): Promise<void> {
    const head = Buffer.alloc(headBytes);
    head.write(kind, 0, 'latin1');
    head.writeUInt32BE(payload.length, 1);
    head.writeUInt32BE(crc32(payload, crc32(head.subarray(0, 5))), 5);
    await put(head);
    await put(payload);
  }
  const json = (kind: string, value: unknown) => record(kind, Buffer.from(JSON.stringify(value)));

  async function add(path: string, content: AsyncIterable<Buffer> | Buffer): Promise<void> {
    await json('F', { path });
    const digest = createHash('sha256');
    let size = 0;
    const pending: Promise<Buffer>[] = [];
    for await (const chunk of chunksOf(content)) {
      digest.update(chunk);
      size += chunk.length;
      const compressed = compress(chunk);
      compressed.catch(() => {});
      pending.push(compressed);
      if (pending.length >= compressionsAtOnce) await record('D', await pending.shift()!);
    }
    for (const compressed of pending) await record('D', await compressed);
    await json('C', { size, sha256: digest.digest('hex') });
    files++;
  }

  try {
    await put(magic);
    await json('H', { ...about, format: formatVersion });
    await fill(add);
    await json('E', { files, sha256: whole.copy().digest('hex') });
    sink.end();
    await end;
  } catch (error) {
    sink.destroy(error as Error);
    throw error;
  }
}

const drained = (sink: Writable) => new Promise<void>((resolve) => sink.once('drain', resolve));

/** Copies: the caller may reuse what it yields while compression is still at work. */
async function* chunksOf(content: AsyncIterable<Buffer> | Buffer): AsyncGenerator<Buffer> {
  if (Buffer.isBuffer(content)) {
    for (let at = 0; at < content.length; at += chunkBytes)
      yield content.subarray(at, at + chunkBytes);
    return;
  }
  for await (const piece of content)
    for (let at = 0; at < piece.length; at += chunkBytes)
      yield Buffer.from(piece.subarray(at, at + chunkBytes));
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
  const whole = createHash('sha256');
  let about: BackupAbout | undefined;
  let file: { path: string; digest: ReturnType<typeof createHash>; size: number } | undefined;
  let files = 0;
  let ended: string | undefined;
  const bytes = createByteSource(source);

  const damaged = (what: string, at: number) => new DamagedBackup(what, at, file?.path);
  for await (const { kind, payload, at, raw } of records(bytes, damaged)) {
    signal?.throwIfAborted();
    if (ended !== undefined) throw damaged('bytes after its end', at);
    if (kind === 'magic') {
      whole.update(raw);
      continue;
    }
    if ((kind === 'H') === (about !== undefined)) throw damaged('records out of order', at);
    if (kind === 'H') {
      const header = parse(payload, damaged, at);
      if (header.format !== formatVersion)
        throw new Error(`backup has format ${header.format}; this version reads ${formatVersion}`);
      about = header;
      await reader.about?.(header);
    } else if (kind === 'F' && !file) {
      const { path } = parse<{ path: string }>(payload, damaged, at);
      file = { path: safePath(path, damaged, at), digest: createHash('sha256'), size: 0 };
      await reader.file?.(path);
    } else if (kind === 'D' && file) {
      const content = await decompress(payload, { maxOutputLength: chunkBytes }).catch(() => {
        throw damaged('data cannot be decompressed', at);
      });
      file.digest.update(content);
      file.size += content.length;
      await reader.data?.(content);
    } else if (kind === 'C' && file) {
      const { size, sha256 } = parse<{ size: number; sha256: string }>(payload, damaged, at);
      if (size !== file.size || sha256 !== file.digest.digest('hex'))
        throw damaged('the content does not match its digest', at);
      await reader.closed?.();
      files++;
      file = undefined;
    } else if (kind === 'E' && !file) {
      const sha256 = whole.copy().digest('hex');
      const end = parse<{ files: number; sha256: string }>(payload, damaged, at);
      if (end.files !== files || end.sha256 !== sha256)
        throw damaged('the whole does not match its digest', at);
      ended = sha256;
    } else throw damaged('records out of order', at);
    whole.update(raw);
  }
  if (ended === undefined || !about) throw damaged('it ends too early', bytes.position);
  return { about, sizeBytes: bytes.position, sha256: ended };
}

/** Reads only what the backup says of itself. */
export async function readBackupAbout(source: Readable): Promise<BackupAbout> {
  const damaged = (what: string, at: number) => new DamagedBackup(what, at);
  try {
    for await (const { kind, payload, at } of records(createByteSource(source), damaged))
      if (kind === 'H') return parse(payload, damaged, at);
      else if (kind !== 'magic') break;
    throw damaged('it does not begin with a header', 0);
  } finally {
    source.destroy();
  }
}

type Damaged = (what: string, at: number) => DamagedBackup;

interface StoredRecord {
  kind: string;
  payload: Buffer;
  /** Where it begins in the stream. */
  at: number;
  raw: Buffer;
}

async function* records(bytes: ByteSource, damaged: Damaged): AsyncGenerator<StoredRecord> {
  const begin = await bytes.take(magic.length);
  if (!begin?.equals(magic)) throw damaged('it does not begin as a backup does', 0);
  yield { kind: 'magic', payload: Buffer.alloc(0), at: 0, raw: begin };
  for (;;) {
    const at = bytes.position;
    const head = await bytes.take(headBytes);
    if (!head) return;
    if (head.length < headBytes) throw damaged('it ends too early', bytes.position);
    const length = head.readUInt32BE(1);
    if (length > recordLimitBytes) throw damaged('a record is too long', at);
    const payload = length === 0 ? Buffer.alloc(0) : await bytes.take(length);
    if (!payload || payload.length < length) throw damaged('it ends too early', bytes.position);
    if (crc32(payload, crc32(head.subarray(0, 5))) !== head.readUInt32BE(5))
      throw damaged('a checksum does not match', at);
    const raw = Buffer.concat([head, payload]);
    yield { kind: String.fromCharCode(head[0]!), payload, at, raw };
  }
}

interface ByteSource {
  readonly position: number;
  /** The next `length` bytes; fewer if the stream ends before, `undefined` at its end. */
  take(length: number): Promise<Buffer | undefined>;
}

function createByteSource(source: Readable): ByteSource {
  const iterator = source[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  let held: Buffer[] = [];
  let heldBytes = 0;
  let position = 0;
  return {
    get position() {
      return position;
    },
    async take(length) {
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

function parse<T = BackupAbout>(payload: Buffer, damaged: Damaged, at: number): T {
  try {
    return JSON.parse(payload.toString('utf8')) as T;
  } catch {
    throw damaged('a record cannot be read', at);
  }
}

/** A path must stay below the directory it is restored to, whoever wrote it; `x/` is a directory. */
function safePath(path: unknown, damaged: Damaged, at: number): string {
  const isSafe =
    typeof path === 'string' &&
    path !== '' &&
    !path.includes('\0') &&
    path
      .replace(/\/$/, '')
      .split('/')
      .every((part) => part !== '' && part !== '.' && part !== '..');
  if (!isSafe) throw damaged('a path leads outside', at);
  return path;
}
