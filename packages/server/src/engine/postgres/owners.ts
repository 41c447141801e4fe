// Which operating-system user runs what. As root every instance has a uid of its own, from a block
// that belongs to the data directory; otherwise everything is the service's own user.
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { userInfo } from 'node:os';
import type { Owner } from './fleet.ts';

export interface Owners {
  /** An owner no other instance has; `undefined` when not root. */
  allocate(): Owner | undefined;
  /** Marks a uid found on disk as taken. */
  claim(uid: number): void;
  release(owner: Owner | undefined): void;
  /** An existing unprivileged user, for initdb, which insists on a name; `undefined` when not root. */
  readonly named: Owner | undefined;
}

export const isRoot = () => process.getuid?.() === 0;

/** The service's own user name, as peer authentication will see it; null when it has none. */
export function serviceUserName(): string | null {
  try {
    return userInfo().username;
  } catch {
    return null;
  }
}

const blockSize = 65_536;
// Above every range that distributions and container runtimes hand out.
const firstUid = 1_900_000_000;
const blockCount = 3_000;

export async function createOwners(options: {
  dataDir: string;
  /** First uid of the block; default: chosen by the data directory's path. */
  uidBase?: number | undefined;
}): Promise<Owners> {
  if (!isRoot()) return { allocate: () => undefined, claim() {}, release() {}, named: undefined };

  const range = await uidRange(options);
  const taken = new Set<number>();
  let next = range.from;
  return {
    named: await namedUser(),
    allocate() {
      for (let tries = 0; tries < range.count; tries++) {
        const uid = next;
        next = next + 1 < range.from + range.count ? next + 1 : range.from;
        if (taken.has(uid)) continue;
        taken.add(uid);
        return { uid, gid: uid };
      }
      throw new Error(`no uid is left between ${range.from} and ${range.from + range.count - 1}`);
    },
    claim: (uid) => void taken.add(uid),
    release: (owner) => void (owner && taken.delete(owner.uid)),
  };
}

async function uidRange(options: { dataDir: string; uidBase?: number | undefined }) {
  if (options.uidBase !== undefined) return { from: options.uidBase, count: blockSize };
  const highest = await highestMappedUid();
  const digest = createHash('sha256').update(options.dataDir).digest().readUInt32BE(0);
  const from = firstUid + (digest % blockCount) * blockSize;
  if (from + blockSize <= highest) return { from, count: blockSize };
  // A container that maps few uids: what lies between ordinary users and reserved ranges.
  const low = { from: 30_000, count: 29_000 };
  if (low.from + low.count > highest)
    throw new Error('running as root in a user namespace that maps too few uids; run as a user');
  return low;
}

/** In a user namespace only mapped uids can be switched to. */
async function highestMappedUid(): Promise<number> {
  const map = await readFile('/proc/self/uid_map', 'utf8').catch(() => '0 0 4294967295');
  const line = map.split('\n').find((row) => /^\s*0\s/.test(row));
  return Number(line?.trim().split(/\s+/)[2] ?? 0);
}

async function namedUser(): Promise<Owner> {
  const users = (await readFile('/etc/passwd', 'utf8').catch(() => ''))
    .split('\n')
    .map((line) => line.split(':'))
    .map(([name, , uid, gid]) => ({ name, uid: Number(uid), gid: Number(gid) }))
    .filter((user) => user.uid > 0 && user.gid > 0);
  const user = users.find(({ name }) => name === 'nobody') ?? users[0];
  if (!user) throw new Error('running as root, but there is no unprivileged user for initdb');
  return { uid: user.uid, gid: user.gid };
}
