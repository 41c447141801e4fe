import { type Engine, type HistoryWindow, OutsideHistory } from '../../engine/engine.ts';
import type { Queryable } from '../../engine/metastore/metastore.ts';
import { unprocessable } from '../../kernel/app-error.ts';
import type { Clock } from '../../kernel/clock.ts';
import type { DatabaseRecord } from '../../kernel/database-record.ts';
import type { Principal } from '../../kernel/principal.ts';
import type { DatabasesService, MadeDatabase } from '../databases/index.ts';
import { dateOf, parseInstant } from './instant.ts';

export interface BranchesDeps {
  databases: Pick<DatabasesService, 'make'>;
  engine: Pick<Engine, 'branch' | 'history'>;
  /** Gives the branch what its parent has, or had at an instant, besides what is in the database. */
  copySecrets(tx: Queryable, fromId: string, toId: string, at?: Date): Promise<void>;
  clock: Clock;
}

export type BranchesService = ReturnType<typeof createBranchesService>;

export function createBranchesService({ databases, engine, copySecrets, clock }: BranchesDeps) {
  /** From the database's creation on, as far as its history is kept. */
  async function windowOf(parent: DatabaseRecord): Promise<HistoryWindow> {
    const { from, to } = await engine.history(parent.id);
    return { from: new Date(Math.max(from.getTime(), parent.createdAt.getTime())), to };
  }

  const outside = ({ from, to }: HistoryWindow) =>
    unprocessable(
      `snapshot_at is outside the history of this database, which reaches from ${from.toISOString()} to ${to.toISOString()}`,
    );

  async function check(parent: DatabaseRecord, atMicros: bigint): Promise<void> {
    const at = dateOf(atMicros);
    const window = await windowOf(parent);
    if (at < window.from || at > clock.now()) throw outside(window);
  }

  return {
    async create(
      principal: Principal,
      parent: DatabaseRecord,
      { name, snapshotAt }: { name: string; snapshotAt: string | undefined },
    ): Promise<MadeDatabase> {
      const atMicros = snapshotAt === undefined ? undefined : parseInstant(snapshotAt);
      if (atMicros !== undefined) await check(parent, atMicros);
      // A millisecond that ends with the instant has been lived through by then.
      const secretsAt = atMicros === undefined ? undefined : dateOf(atMicros + 1n);
      try {
        return await databases.make(
          principal,
          { name, parent },
          (id, adminVerifier) => engine.branch(parent.id, id, { adminVerifier, atMicros }),
          (tx, id) => copySecrets(tx, parent.id, id, secretsAt),
        );
      } catch (error) {
        // The window moved on between the check and the work.
        if (error instanceof OutsideHistory) throw outside(error.window);
        throw error;
      }
    },
  };
}
