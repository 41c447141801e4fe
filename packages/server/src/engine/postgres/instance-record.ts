// instance.json: the little the fleet must know of an instance before it runs.
import { open, readFile, rename, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';

export interface InstanceRecord {
  /** Fingerprint of the template it was copied from; null for one that history made. */
  template: string | null;
  /** Fingerprint of the steps it is known to have; null: look inside. */
  steps: string | null;
  /** Verifier of the role `admin` that the next wake has still to set. */
  adminVerifier?: string;
}

const fileName = 'instance.json';

export async function readRecord(root: string): Promise<InstanceRecord | null> {
  const text = await readFile(join(root, fileName), 'utf8').catch((error) => {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  });
  if (text === null) return null;
  try {
    return JSON.parse(text) as InstanceRecord;
  } catch {
    // A power cut right after it was made: what it has, it has to be asked.
    return { template: null, steps: null };
  }
}

/** Whole or not at all, and on disk when it returns. */
export async function writeRecord(root: string, record: InstanceRecord): Promise<void> {
  const draft = join(root, `${fileName}.draft`);
  await writeFile(draft, JSON.stringify(record), { mode: 0o600, flush: true });
  await rename(draft, join(root, fileName));
}

/** The first record of a directory that nobody looks into yet; `syncInstance` brings it to disk. */
export async function writeFirstRecord(root: string, record: InstanceRecord): Promise<void> {
  await writeFile(join(root, fileName), JSON.stringify(record), { mode: 0o600 });
}

/** Makes the record of an instance, and its name, survive a power cut. */
export async function syncInstance(root: string): Promise<void> {
  await sync(join(root, fileName));
  await sync(root);
  await sync(dirname(root));
}

export async function sync(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
