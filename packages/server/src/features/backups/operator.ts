// What an operator can do with a store alone, without a control database: see what is in it, and
// have it read through.
import { type BackupAbout, readBackup, readBackupAbout } from '../../engine/backup-stream.ts';
import type { BackupStore } from './backup-store.ts';

export interface StoredBackup {
  id: string;
  sizeBytes: number;
  /** What the backup says of itself, or why it cannot. */
  about: BackupAbout | { error: string };
}

export async function listStored(store: BackupStore): Promise<StoredBackup[]> {
  const found: StoredBackup[] = [];
  for (const { id, sizeBytes } of await store.list()) {
    const about = await store
      .open(id)
      .then(readBackupAbout)
      .catch((error: Error) => ({ error: error.message }));
    found.push({ id, sizeBytes, about });
  }
  const madeAt = ({ about }: StoredBackup) =>
    'created_at' in about ? String(about.created_at) : '';
  return found.sort((a, b) => (madeAt(a) < madeAt(b) ? 1 : -1));
}

/** Reads all of it; throws a `DamagedBackup` that says where. */
export async function verifyStored(store: BackupStore, id: string): Promise<BackupAbout> {
  return (await readBackup(await store.open(id))).about;
}
