// Opens the archives that bundles come in. Names and sizes are hostile: nothing is written outside
// the given directory, links and special files are left out, and what comes out is bounded.
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join, posix } from 'node:path';
import { promisify } from 'node:util';
import { Worker } from 'node:worker_threads';
import { gunzip } from 'node:zlib';
import { Unzip, UnzipInflate } from 'fflate';
import { Parser, type ReadEntry } from 'tar';

export class ArchiveError extends Error {
  override readonly name = 'ArchiveError';
}

export type BundleKind = 'tar.gz' | 'tar' | 'zip' | 'module';

const maxFiles = 10_000;
const maxUnpackedBytes = 128 * 1024 * 1024;
/** With what the format itself spends: headers, padding, links. */
const maxTarBytes = maxUnpackedBytes + 32 * 1024 * 1024;
const unpackTimeoutMs = 30_000;

/** By content, whatever the name says. */
export function bundleKind(bytes: Buffer): BundleKind {
  if (bytes[0] === 0x1f && bytes[1] === 0x8b) return 'tar.gz';
  if (bytes.subarray(0, 4).toString('latin1') === 'PK\x03\x04') return 'zip';
  if (bytes.subarray(257, 262).toString('latin1') === 'ustar') return 'tar';
  return 'module';
}

type ArchiveKind = Exclude<BundleKind, 'module'>;
export interface UnpackRequest {
  kind: ArchiveKind;
  bytes: Uint8Array;
  directory: string;
}
export type UnpackAnswer = { names: string[] } | { problem: string };

/**
 * Writes the files of the archive below `directory`; gives their names. It happens on a thread of
 * its own: inflating keeps a processor busy for a while.
 */
export async function unpack(
  kind: ArchiveKind,
  bytes: Buffer,
  directory: string,
): Promise<string[]> {
  const request: UnpackRequest = { kind, bytes, directory };
  const worker = new Worker(new URL('./archive-worker.ts', import.meta.url), {
    workerData: request,
    env: {},
    resourceLimits: { maxOldGenerationSizeMb: 256 },
  });
  const timer = setTimeout(() => void worker.terminate(), unpackTimeoutMs);
  try {
    const answer = await new Promise<UnpackAnswer>((resolve, reject) => {
      worker.once('message', resolve);
      worker.once('error', reject);
      worker.once('exit', () => reject(new Error('it takes too long to unpack')));
    });
    if ('problem' in answer) throw new ArchiveError(answer.problem);
    return answer.names;
  } catch (error) {
    if (error instanceof ArchiveError) throw error;
    throw new ArchiveError(`the bundle is not a readable archive: ${(error as Error).message}`);
  } finally {
    clearTimeout(timer);
    void worker.terminate();
  }
}

/** What the thread does. */
export async function unpackHere({ kind, bytes, directory }: UnpackRequest): Promise<string[]> {
  const budget = { bytes: 0, names: new Set<string>() };
  const files =
    kind === 'zip' ? readZip(bytes, budget) : await readTar(bytes, kind === 'tar.gz', budget);
  for (const { path, parts } of files) {
    const target = join(directory, path);
    await mkdir(dirname(target), { recursive: true });
    await writeFile(target, Buffer.concat(parts));
  }
  if (budget.names.size === 0) throw new ArchiveError('the bundle holds no files');
  return [...budget.names];
}

interface ArchivedFile {
  path: string;
  parts: Uint8Array[];
}

interface Budget {
  bytes: number;
  names: Set<string>;
}

function spend(budget: Budget, bytes: number): void {
  budget.bytes += bytes;
  if (budget.bytes > maxUnpackedBytes)
    throw new ArchiveError(`the bundle unpacks to more than ${maxUnpackedBytes / 1024 / 1024} MiB`);
}

/** The name as a path below the directory; refuses anything that would lead out of it. */
function admitName(budget: Budget, name: string): string {
  const parts = name.split('/');
  if (name.startsWith('/') || name.includes('\\') || name.includes('\0') || parts.includes('..'))
    throw new ArchiveError(`the bundle holds a file outside itself: ${name.slice(0, 200)}`);
  const path = posix.normalize(name);
  if (path.length > 1024 || parts.some((part) => Buffer.byteLength(part) > 255))
    throw new ArchiveError('the bundle holds a name that is too long');
  budget.names.add(path);
  if (budget.names.size > maxFiles)
    throw new ArchiveError(`the bundle holds more than ${maxFiles} files`);
  return path;
}

async function readTar(bytes: Uint8Array, compressed: boolean, budget: Budget) {
  const tar = compressed
    ? await promisify(gunzip)(bytes, { maxOutputLength: maxTarBytes }).catch(refuseBomb)
    : Buffer.from(bytes);
  const files: ArchivedFile[] = [];
  let problem: Error | undefined;
  const parser = new Parser({ strict: true, maxMetaEntrySize: 1024 * 1024 });
  parser.on('entry', (entry: ReadEntry) => {
    if (problem || (entry.type !== 'File' && entry.type !== 'OldFile')) return entry.resume();
    const file: ArchivedFile = { path: '', parts: [] };
    try {
      file.path = admitName(budget, entry.path);
      spend(budget, entry.size);
    } catch (error) {
      problem ??= error as Error;
      return entry.resume();
    }
    files.push(file);
    entry.on('data', (chunk: Buffer) => file.parts.push(chunk));
  });
  parser.on('error', (error) => {
    problem ??= error as Error;
  });
  for (const slice of slices(tar)) {
    parser.write(Buffer.from(slice));
    if (problem) throw problem;
  }
  parser.end();
  if (problem) throw problem;
  return files;
}

function refuseBomb(error: NodeJS.ErrnoException): never {
  if (error.code === 'ERR_BUFFER_TOO_LARGE') spend({ bytes: 0, names: new Set() }, maxTarBytes);
  throw error;
}

function* slices(bytes: Uint8Array): Generator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += 65_536) yield bytes.subarray(at, at + 65_536);
}

function readZip(bytes: Uint8Array, budget: Budget): ArchivedFile[] {
  const files: ArchivedFile[] = [];
  const unzip = new Unzip((file) => {
    if (file.name.endsWith('/')) return;
    const entry: ArchivedFile = { path: admitName(budget, file.name), parts: [] };
    files.push(entry);
    file.ondata = (error, data) => {
      if (error) throw error;
      spend(budget, data.length);
      entry.parts.push(data);
    };
    file.start();
  });
  unzip.register(UnzipInflate);
  for (const slice of slices(bytes)) unzip.push(slice);
  unzip.push(new Uint8Array(0), true);
  return files;
}
