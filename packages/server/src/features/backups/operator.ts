// What an operator can do with a store, whether or not the control database knows its backups: see
// what is in it, have it read through, and make databases of it.
import { type BackupAbout, readBackup, readBackupAbout } from '../../engine/backup-stream.ts';
import type { Engine } from '../../engine/engine.ts';
import type { Principal } from '../../kernel/principal.ts';
import type { DatabasesService, MadeDatabase } from '../databases/index.ts';
import type { BackupStore } from './backup-store.ts';

export type DatabaseOwner = Pick<Principal, 'accountKey' | 'isAnonymous'>;

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

/** Reads all of it twice: nothing is made of a backup that is damaged at its end. */
export async function restoreStored(
  deps: {
    backupStore: BackupStore;
    databases: Pick<DatabasesService, 'make'>;
    engine: Pick<Engine, 'restore'>;
  },
  owner: DatabaseOwner,
  backupId: string,
  name: string,
): Promise<MadeDatabase> {
  await verifyStored(deps.backupStore, backupId);
  const source = await deps.backupStore.open(backupId);
  return deps.databases.make(owner, { name }, (id, adminVerifier) =>
    deps.engine.restore(id, source, { adminVerifier }),
  );
}
