// A migration and its record are one transaction, in a session that can do what `admin` may and no
// more. Statements are sent one by one, so that none can hide another, and those that would end the
// transaction are refused before anything runs.
import { createHash, randomBytes } from 'node:crypto';
import pg from 'pg';
import type { Sessions } from '../../engine/sessions.ts';
import { ConnectionLost } from '../../engine/wire/backend.ts';
import { type Backends, QueueTimeout, type Use } from '../../engine/wire/backends.ts';
import { runPipeline } from '../../engine/wire/pipeline.ts';
import { ServerError } from '../../engine/wire/server-error.ts';
import {
  copiesThroughClient,
  type Statement,
  splitStatements,
  TooManyStatements,
} from '../../engine/wire/statements.ts';
import { badRequest, conflict, rateLimited, unprocessable } from '../../kernel/app-error.ts';
import { createTurns } from '../../kernel/turns.ts';
import {
  beginMigration,
  finishMigration,
  issueTicket,
  listMigrations,
  type Migration,
} from './store.ts';

export interface NewMigration {
  name: string;
  sql: string;
  checksum?: string | undefined;
}

export interface MigrationsService {
  list(databaseId: string, signal: AbortSignal): Promise<Migration[]>;
  apply(databaseId: string, migration: NewMigration, signal: AbortSignal): Promise<void>;
}

const previewCharacters = 200;
const appliedAlready = 'MG409';
const uniqueViolation = '23505';
const lockNotAvailable = '55P03';

export function createMigrationsService(deps: {
  sessions: Sessions;
  backends: Backends;
}): MigrationsService {
  const { sessions, backends } = deps;
  // Two at once wait here rather than for the lock, each holding a session.
  const turns = createTurns();

  async function apply(use: Use, migration: NewMigration, checksum: string, secret: string) {
    const { backend } = use;
    const { name, sql } = migration;
    const statements = splitStatements(sql);
    await backend.ask('begin transaction isolation level read committed read write');
    const [[transaction] = []] = await backend.askWith(beginMigration, [secret, name]);
    const outcome = await runPipeline(
      backend,
      [
        ...statements.map(({ start, end }) => ({ text: sql.slice(start, end) })),
        // Whoever the migration became: admin is the one who may finish it.
        { text: 'reset session authorization' },
        {
          text: finishMigration,
          params: [secret, transaction!, name, checksum, preview(sql)],
        },
        { text: 'commit' },
      ],
      () => use.guard.restartClock(),
    );
    if (use.guard.stopReason === 'timeout') throw timedOut();
    if (use.guard.stopReason === 'client_gone') throw badRequest('the client went away');
    if (outcome.kind === 'error') {
      const failed = statements[outcome.index];
      const isRecord = outcome.index === statements.length + 1;
      if (isRecord && outcome.error.code === uniqueViolation)
        throw conflict(`migration ${name} is applied already`);
      throw refused(outcome.error, sql, failed?.start ?? 0);
    }
    if (outcome.lastTag !== 'COMMIT') throw unprocessable('the migration was rolled back');
  }

  return {
    list: (databaseId, signal) =>
      sessions.use(databaseId, { role: 'postgres', signal }, listMigrations).catch(explainLock),

    async apply(databaseId, migration, signal) {
      const checksum = `sha256:${createHash('sha256').update(migration.sql).digest('hex')}`;
      if (migration.checksum !== undefined && migration.checksum.toLowerCase() !== checksum)
        throw unprocessable(`checksum does not match: the SQL has ${checksum}`);
      refuseEscapes(migration.sql);
      await turns.take(databaseId, async () => {
        signal.throwIfAborted();
        const secret = randomBytes(32).toString('base64url');
        await sessions
          .use(databaseId, { role: 'postgres' }, (db) => issueTicket(db, secret))
          .catch(explainLock);
        try {
          await backends.use(
            databaseId,
            { role: 'admin', isCallerGone: () => signal.aborted },
            async (use) => {
              // Whatever the migration set: its session is not worth cleaning.
              use.guard.isDirty = true;
              if (/\balter\s+(?:role|user|group|database)\b/i.test(migration.sql)) use.outdate();
              await apply(use, migration, checksum, secret);
            },
          );
        } catch (error) {
          if (error instanceof ServerError) throw refused(error, migration.sql, 0);
          if (error instanceof ConnectionLost) throw unprocessable(error.message, error);
          if (error instanceof QueueTimeout)
            throw rateLimited(`${error.message}; try again when others have ended`, 1);
          throw error;
        }
      });
    },
  };
}

function explainLock(error: unknown): never {
  if (error instanceof pg.DatabaseError && error.code === lockNotAvailable)
    throw unprocessable('the record of migrations is locked by another session', error);
  throw error;
}

function refused(error: ServerError, sql: string, offset: number) {
  if (error.code === appliedAlready) return conflict(error.message);
  return unprocessable(error.render(sql, offset), error);
}

const timedOut = () =>
  unprocessable('canceling the migration: a statement took longer than the limit; nothing applied');

function split(sql: string): Statement[] {
  try {
    return splitStatements(sql);
  } catch (error) {
    throw error instanceof TooManyStatements ? unprocessable(error.message) : error;
  }
}

/** What could leave the transaction, or hold up the statements behind it, never starts. */
function refuseEscapes(sql: string): void {
  const statements = split(sql);
  const control = statements.find(endsTransaction);
  if (control)
    throw unprocessable(
      `${control.words[0]!.toUpperCase()} cannot be used in a migration: ` +
        'it runs in one transaction together with its record',
    );
  if (statements.some((statement) => copiesThroughClient(sql, statement)))
    throw unprocessable('COPY FROM STDIN and COPY TO STDOUT cannot be used in a migration');
}

function endsTransaction({ words: [first, second, third] }: Statement): boolean {
  switch (first) {
    case 'begin':
    case 'start':
    case 'commit':
    case 'end':
    case 'abort':
      return true;
    case 'rollback':
      // ROLLBACK [WORK | TRANSACTION] TO [SAVEPOINT] goes back, but not out.
      return second !== 'to' && third !== 'to';
    case 'prepare':
      return second === 'transaction';
    default:
      return false;
  }
}

const preview = (sql: string) =>
  [...sql.slice(0, 2 * previewCharacters)].slice(0, previewCharacters).join('').toWellFormed();
