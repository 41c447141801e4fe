// The write-ahead log as files. Postgres is told never to remove a segment (`wal_keep_size`);
// history moves those it no longer needs out of `data/pg_wal` into `history/wal`, by renaming. So a
// database's log is the union of both directories, complete from its oldest base to its last
// commit; nothing is written twice, and nothing has to run for it: no log is lost because an
// archiver was down.
import { readdir, readFile, rename, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { InstancePaths, Owner, Settings } from '../fleet.ts';
import type { ClonePool } from './clone-pool.ts';
import { cloneFiles, fsyncPath } from './clone-tree.ts';
import { ifMissing } from './errno.ts';

/** What every start of an instance needs for its history to be complete. */
export const historySettings: Settings = {
  wal_level: 'replica',
  full_page_writes: 'on',
  wal_keep_size: '2147483647',
  // A segment may have a second name in another database's history: it is never written over.
  wal_recycle: 'off',
};

const segmentName = /^[0-9A-F]{24}$/;
const timelineName = /^[0-9A-F]{8}\.history$/;

export interface WalFile {
  name: string;
  directory: string;
  /** Where it lies in the log; `undefined` for a timeline's own little file. */
  segment: bigint | undefined;
}

/** Segments are compared by the part of their name that comes after the timeline. */
const segmentOf = (name: string) =>
  segmentName.test(name) ? BigInt(`0x${name.slice(8)}`) : undefined;

/** The number, as in the name, of the segment that holds `lsn`. */
export function segmentAt(lsn: bigint, segmentBytes: number): bigint {
  return ((lsn >> 32n) << 32n) | ((lsn & 0xffff_ffffn) / BigInt(segmentBytes));
}

function nextSegment(segment: bigint, segmentBytes: number): bigint {
  const inLog = (segment & 0xffff_ffffn) + 1n;
  if (inLog * BigInt(segmentBytes) < 1n << 32n) return segment + 1n;
  return ((segment >> 32n) + 1n) << 32n;
}

export const walDirectories = (paths: InstancePaths) => [
  join(paths.history, 'wal'),
  join(paths.data, 'pg_wal'),
];

/** All there is in these directories, oldest first. Hold the history's gate: files move. */
export async function listWal(directories: readonly string[]): Promise<WalFile[]> {
  const files = new Map<string, WalFile>();
  for (const directory of directories)
    for (const name of await readdir(directory).catch(ifMissing([] as string[])))
      if (segmentName.test(name) || timelineName.test(name))
        files.set(name, { name, directory, segment: segmentOf(name) });
  const order = ({ name }: WalFile) => name.slice(8) + name.slice(0, 8);
  return [...files.values()].sort((a, b) => (order(a) < order(b) ? -1 : 1));
}

export class WalGap extends Error {
  constructor(segment: bigint) {
    super(`the write-ahead log has no segment ${segment.toString(16).padStart(16, '0')}`);
    this.name = 'WalGap';
  }
}

/** What is needed to replay from one segment to another, both included; throws if one is missing. */
export function walBetween(
  log: readonly WalFile[],
  first: bigint,
  last: bigint,
  segmentBytes: number,
): WalFile[] {
  const needed = log.filter(
    ({ segment }) => segment === undefined || (segment >= first && segment <= last),
  );
  const present = new Set(needed.map(({ segment }) => segment));
  for (let segment = first; segment <= last; segment = nextSegment(segment, segmentBytes))
    if (!present.has(segment)) throw new WalGap(segment);
  return needed;
}

/** `link`: gives segments that are full a second name instead of copying them. */
export async function placeWal(
  pool: ClonePool,
  kind: 'copy' | 'link',
  files: readonly WalFile[],
  target: string,
  owner?: Owner | undefined,
): Promise<void> {
  const byDirectory = Map.groupBy(files, ({ directory }) => directory);
  await Promise.all(
    [...byDirectory].map(([source, found]) =>
      cloneFiles(
        pool,
        found.map(({ name }) => name),
        { kind, source, target, owner },
      ),
    ),
  );
}

/** Moves segments below `keepFrom` out of a data directory into its history; durably. */
export async function moveWal(paths: InstancePaths, keepFrom: bigint): Promise<void> {
  const [to, from] = walDirectories(paths) as [string, string];
  let moved = false;
  for (const { name, segment } of await listWal([from]))
    if (segment !== undefined && segment < keepFrom) {
      await rename(join(from, name), join(to, name));
      moved = true;
    }
  if (!moved) return;
  await fsyncPath(to);
  await fsyncPath(from);
}

/** Where replay of a copy begins: its backup label says; one that was stopped in order has none. */
export async function replayStart(data: string): Promise<{ startLsn: bigint; isStopped: boolean }> {
  const label = await readFile(join(data, 'backup_label'), 'utf8').catch(ifMissing(undefined));
  return label === undefined
    ? { startLsn: (await readControlFile(data)).redo, isStopped: true }
    : { startLsn: startOfLabel(label), isStopped: false };
}

export function startOfLabel(label: string): bigint {
  const lsn = /^START WAL LOCATION: ([0-9A-F]+\/[0-9A-F]+) /m.exec(label)?.[1];
  if (lsn === undefined) throw new Error('backup label not understood');
  return parseLsn(lsn);
}

export function parseLsn(text: string): bigint {
  const [high, low] = text.split('/');
  return (BigInt(`0x${high}`) << 32n) | BigInt(`0x${low}`);
}

export interface ControlFile {
  bytes: Buffer;
  /** When it was written last, to the second. */
  at: Date;
  /** Where replay after its last checkpoint begins. */
  redo: bigint;
}

/**
 * `global/pg_control`. Its head has had this layout since Postgres 9.4 (src/include/catalog/
 * pg_control.h): system identifier at 0, state 16, time 24, last checkpoint 32, its redo 40.
 */
export async function readControlFile(data: string): Promise<ControlFile> {
  const path = join(data, 'global/pg_control');
  let bytes = await readFile(path);
  // A running server rewrites it in place: two equal reads in a row are whole.
  for (let again = await readFile(path); !again.equals(bytes); again = await readFile(path))
    bytes = again;
  return {
    bytes,
    at: new Date(Number(bytes.readBigInt64LE(24)) * 1000),
    redo: bytes.readBigUInt64LE(40),
  };
}

/** Chosen when the cluster was made; every segment has it, used in full or not. */
export async function segmentBytesOf(directories: readonly string[]): Promise<number> {
  const log = await listWal(directories);
  const file = log.findLast(({ segment }) => segment !== undefined);
  if (!file) throw new Error(`no write-ahead log in ${directories.join(', ')}`);
  return (await stat(join(file.directory, file.name))).size;
}
