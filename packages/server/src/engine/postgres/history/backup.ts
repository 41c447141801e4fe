// What a backup holds: `data/…`, a copy of the data directory with its label and the log it takes to
// start it, and `stopped-at`, the instant up to which it is complete. It needs nothing else: not
// the database, not its history, not the control database.
import { createReadStream } from 'node:fs';
import { type FileHandle, mkdir, open, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { type AddFile, readBackup } from '../../backup-stream.ts';
import type { Draft, Fleet } from '../fleet.ts';
import { keepBase, makeHistory } from './bases.ts';
import type { ClonePool } from './clone-pool.ts';
import { cloneTree } from './clone-tree.ts';
import { ifMissing } from './errno.ts';
import type { Gates } from './gates.ts';
import { skippedInCopy, whileCopyable } from './running-copy.ts';
import {
  listWal,
  readControlFile,
  replayStart,
  segmentAt,
  segmentBytesOf,
  walBetween,
  walDirectories,
} from './wal.ts';

const stoppedAtFile = 'stopped-at';
const pieceBytes = 1 << 20;

export interface Packing {
  fleet: Fleet;
  gates: Gates;
  id: string;
  add: AddFile;
  signal?: AbortSignal | undefined;
}

export async function packInstance({ fleet, gates, id, add, signal }: Packing): Promise<void> {
  const paths = fleet.paths(id);
  const copy = await fleet.withRunning(id, (client) =>
    whileCopyable(client, () => packTree(paths.data, add, signal)),
  );
  await add('data/backup_label', Buffer.from(copy.label));
  await gates.shared(id, async () => {
    const directories = walDirectories(paths);
    const segmentBytes = await segmentBytesOf(directories);
    const start = segmentAt(copy.startLsn, segmentBytes);
    const stop = segmentAt(copy.stopLsn - 1n, segmentBytes);
    const log = walBetween(await listWal(directories), start, stop, segmentBytes);
    for (const { name, directory } of log)
      await add(
        `data/pg_wal/${name}`,
        createReadStream(join(directory, name), { highWaterMark: pieceBytes }),
      );
  });
  await add(stoppedAtFile, Buffer.from(String(copy.stoppedAtMicros)));
}

async function packTree(data: string, add: AddFile, signal?: AbortSignal): Promise<void> {
  async function packDirectory(path: string): Promise<void> {
    const entries = await readdir(join(data, path), { withFileTypes: true }).catch(ifMissing([]));
    await add(`data/${path === '' ? '' : `${path}/`}`, Buffer.alloc(0));
    for (const entry of entries) {
      signal?.throwIfAborted();
      const name = path === '' ? entry.name : `${path}/${entry.name}`;
      if (skippedInCopy(name)) continue;
      if (entry.isDirectory()) await packDirectory(name);
      else if (name === 'global/pg_control')
        await add(`data/${name}`, (await readControlFile(data)).bytes);
      else if (entry.isFile()) await packFile(name);
    }
  }
  async function packFile(name: string): Promise<void> {
    const handle = await open(join(data, name)).catch(ifMissing(undefined));
    if (!handle) return;
    try {
      await add(`data/${name}`, pieces(handle));
    } finally {
      await handle.close();
    }
  }
  await packDirectory('');
}

async function* pieces(handle: FileHandle): AsyncGenerator<Buffer> {
  const buffer = Buffer.allocUnsafe(pieceBytes);
  for (;;) {
    const { bytesRead } = await handle.read(buffer, 0, buffer.length, null);
    if (bytesRead === 0) return;
    yield buffer.subarray(0, bytesRead);
  }
}

export interface Unpacking {
  fleet: Fleet;
  pool: ClonePool;
  source: Readable;
  draft: Draft;
  /** Major version of the Postgres that is to run it. */
  major: number;
  signal?: AbortSignal | undefined;
}

/** Fills a draft with what `packInstance` wrote, and gives it a history that begins with it. */
export async function unpackInstance(unpacking: Unpacking): Promise<void> {
  const { fleet, pool, draft } = unpacking;
  const { paths } = draft;
  const stoppedAtMicros = await unpack(unpacking);
  await makeHistory(paths);
  const base = join(paths.history, 'bases', '.draft');
  await mkdir(base);
  await cloneTree(pool, paths.data, join(base, 'data'), {
    skip: (path) => path.startsWith('pg_wal/'),
    signal: unpacking.signal,
  });
  await fleet.giveToOwner(draft, paths.data);
  const { startLsn } = await replayStart(paths.data);
  await keepBase(paths, base, startLsn, stoppedAtMicros);
}

async function unpack({ source, draft, major, signal }: Unpacking): Promise<bigint> {
  let handle: FileHandle | undefined;
  let stoppedAt: string | undefined;
  try {
    await readBackup(
      source,
      {
        about(about) {
          if (about.engine !== 'postgres' || about.major !== major)
            throw new Error(`backup is of ${about.engine} ${about.major}, here runs ${major}`);
        },
        async file(path) {
          if (path === stoppedAtFile) stoppedAt = '';
          else if (path === 'data/') return;
          else if (!path.startsWith('data/')) throw new Error(`backup has an unknown part ${path}`);
          else if (path.endsWith('/')) await mkdir(join(draft.paths.root, path), { mode: 0o700 });
          else handle = await open(join(draft.paths.root, path), 'wx', 0o600);
        },
        async data(bytes) {
          if (handle) await handle.writeFile(bytes);
          else stoppedAt += bytes.toString('latin1');
        },
        async closed() {
          await handle?.close();
          handle = undefined;
        },
      },
      signal,
    );
  } finally {
    await handle?.close();
  }
  if (stoppedAt === undefined) throw new Error('backup does not say when it was taken');
  return BigInt(stoppedAt);
}
