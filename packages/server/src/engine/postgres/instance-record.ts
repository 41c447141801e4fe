// instance.json: the little the fleet must know of an instance before it runs.
import { open, readFile, rename } from 'node:fs/promises';
import { join } from 'node:path';

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
  try {
    return JSON.parse(await readFile(join(root, fileName), 'utf8')) as InstanceRecord;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
}

/** Whole or not at all, and on disk when it returns. */
export async function writeRecord(root: string, record: InstanceRecord): Promise<void> {
  const draft = join(root, `${fileName}.draft`);
  const sync = await writeUnsynced(draft, record);
  await sync();
  await rename(draft, join(root, fileName));
}

/**
 * The first record of a directory that nobody looks into yet. On disk once `sync` has returned: a
 * caller that renames the directory in between has both made durable by one write of the journal.
 */
export const writeFirstRecord = (root: string, record: InstanceRecord) =>
  writeUnsynced(join(root, fileName), record);

async function writeUnsynced(path: string, record: InstanceRecord): Promise<() => Promise<void>> {
  const file = await open(path, 'w', 0o600);
  try {
    await file.writeFile(JSON.stringify(record));
  } catch (error) {
    await file.close();
    throw error;
  }
  return async () => {
    try {
      await file.datasync();
    } finally {
      await file.close();
    }
  };
}

/** Makes renames in `directory` survive a power cut. */
export async function syncDirectory(directory: string): Promise<void> {
  const handle = await open(directory, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
