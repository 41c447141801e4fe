// `ctx.db` on the service's side: queries of one run, as its role, each on a clean session; a
// transaction keeps its session until it ends. Whatever is still open when the run ends is cut off.
import pg from 'pg';
import type { Sessions } from '../../engine/sessions.ts';
import { quoteLiteral } from '../../kernel/sql-quote.ts';
import type { RunRoles } from './run-roles.ts';
import type { SessionGate } from './session-gate.ts';

export interface DatabaseCallsDeps {
  sessions: Sessions;
  roles: RunRoles;
  /** Shared by the runs of one database: it has few connections, and others want some. */
  gate: SessionGate;
}

export interface DatabaseRun {
  databaseId: string;
  runAs: string;
  bypassRls: boolean;
  /** Verified claims of the end user the run is for. */
  claims: Readonly<Record<string, unknown>> | undefined;
  timeoutMs: number;
}

export interface DatabaseCalls {
  query(args: Record<string, unknown>): Promise<WireResult>;
  begin(): Promise<number>;
  end(args: Record<string, unknown>, how: 'commit' | 'rollback'): Promise<void>;
  /** Ends everything that is still open. */
  close(): Promise<void>;
}

export interface WireResult {
  columns: { name: string; kind: 'date' | 'bytes' | 'plain' }[];
  rows: unknown[][];
  rowCount: number;
  command: string;
}

interface Held {
  client: pg.Client;
  processId: number;
  /** Ends the use of the session; with an error it is not used again. */
  release(error?: Error): void;
}

const maxResultBytes = 16 * 1024 * 1024;
const maxTransactions = 4;
const maxDepth = 8;

export function createDatabaseCalls(deps: DatabaseCallsDeps, run: DatabaseRun): DatabaseCalls {
  const ended = new AbortController();
  const held = new Set<Held>();
  const transactions = new Map<number, Held>();
  let lastTransaction = 0;

  async function hold(): Promise<Held> {
    const leave = await deps.gate.enter(ended.signal);
    try {
      const role = await deps.roles.sessionRole(run.databaseId, run.runAs, run.bypassRls);
      const session = await open(role).catch(async (error) => {
        // The role may have been dropped and made anew since it was looked up.
        deps.roles.forget(run.databaseId);
        throw error;
      });
      const release = session.release;
      session.release = (error) => {
        held.delete(session);
        release(error);
        leave();
      };
      held.add(session);
      if (ended.signal.aborted) {
        session.release(new Error('the run has ended'));
        throw new Error('the run has ended');
      }
      return session;
    } catch (error) {
      leave();
      throw error;
    }
  }

  /** A session that stays in use until it is released. */
  function open(role: string): Promise<Held> {
    return new Promise((resolve, reject) => {
      deps.sessions
        .use(run.databaseId, { role }, async (client) => {
          await client.query(settings(run));
          await new Promise<void>((done, fail) => {
            const { processID } = client as unknown as { processID: number };
            const release = (error?: Error) => (error ? fail(error) : done());
            resolve({ client, processId: processID, release });
          });
        })
        .catch(reject);
    });
  }

  function transactionOf(args: Record<string, unknown>): Held {
    const session = transactions.get(args.transaction as number);
    if (!session) throw new Error('the transaction has ended');
    return session;
  }

  return {
    async query(args) {
      const { sql, params } = args;
      if (typeof sql !== 'string' || !Array.isArray(params))
        throw new TypeError('query takes SQL and an array of parameters');
      const values = params.map((value) => toValue(value, 0));
      if (args.transaction !== undefined && args.transaction !== null)
        return runQuery(transactionOf(args), sql, values);
      const session = await hold();
      try {
        const result = await runQuery(session, sql, values);
        session.release();
        return result;
      } catch (error) {
        session.release(error as Error);
        throw error;
      }
    },

    async begin() {
      if (transactions.size >= maxTransactions)
        throw new Error(`a run may have ${maxTransactions} transactions at once`);
      const session = await hold();
      try {
        await session.client.query('begin');
      } catch (error) {
        session.release(error as Error);
        throw error;
      }
      transactions.set(++lastTransaction, session);
      return lastTransaction;
    },

    async end(args, how) {
      const session = transactionOf(args);
      transactions.delete(args.transaction as number);
      try {
        const { command } = await session.client.query(how);
        session.release();
        // Postgres answers ROLLBACK to the commit of a transaction that had failed.
        if (how === 'commit' && command === 'ROLLBACK')
          throw new Error('the transaction had failed and was rolled back');
      } catch (error) {
        session.release(error as Error);
        throw error;
      }
    },

    async close() {
      ended.abort();
      const open = [...held];
      for (const session of open) session.release(new Error('the run has ended'));
      if (open.length === 0) return;
      // A session whose socket closes goes on with its statement; this stops it.
      await deps.sessions
        .use(run.databaseId, { role: 'postgres', signal: AbortSignal.timeout(5_000) }, (client) =>
          client.query('select pg_catalog.pg_terminate_backend(p) from unnest($1::int[]) p', [
            open.map(({ processId }) => processId),
          ]),
        )
        .catch(() => {});
    },
  };
}

function settings({ claims, timeoutMs }: DatabaseRun): string {
  const values: [string, string][] = [['statement_timeout', String(timeoutMs)]];
  if (claims) {
    values.push(['request.jwt.claims', JSON.stringify(claims)]);
    if (typeof claims.sub === 'string') values.push(['request.jwt.claim.sub', claims.sub]);
  }
  const calls = values.map(
    ([name, value]) => `set_config(${quoteLiteral(name)}, ${quoteLiteral(value)}, false)`,
  );
  return `select ${calls.join(', ')}`;
}

/** Runs it, and gives up as soon as more has arrived than a function may have. */
async function runQuery(session: Held, text: string, values: unknown[]): Promise<WireResult> {
  const { stream } = (session.client as unknown as { connection: { stream: NodeJS.ReadStream } })
    .connection;
  let received = 0;
  let tooLarge = false;
  const count = (chunk: Buffer) => {
    received += chunk.length;
    if (received > maxResultBytes && !tooLarge) {
      tooLarge = true;
      stream.destroy();
    }
  };
  stream.on('data', count);
  try {
    const config = { text, values, rowMode: 'array' as const, types: wireTypes };
    const answer = await session.client.query<unknown[]>(config);
    // Several statements without parameters: the last one counts.
    const last = Array.isArray(answer) ? (answer.at(-1) as typeof answer) : answer;
    return {
      columns: last.fields.map(({ name, dataTypeID }) => ({ name, kind: kindOf(dataTypeID) })),
      rows: last.rows,
      rowCount: last.rowCount ?? 0,
      command: last.command ?? '',
    };
  } catch (error) {
    if (tooLarge)
      throw new Error(
        `the result is larger than ${maxResultBytes / 1024 / 1024} MiB; ask for fewer rows or columns`,
      );
    throw error;
  } finally {
    stream.off('data', count);
  }
}

const oid = { bytea: 17, int8: 20, timestamptz: 1184, numeric: 1700 };
/** Numbers, booleans, JSON, and arrays of these and of text: as node-postgres reads them. */
const plainOids = new Set([
  16, 21, 23, 26, 700, 701, 114, 3802, 1000, 1005, 1007, 1009, 1014, 1015, 1021, 1022, 2951, 199,
  3807,
]);

const kindOf = (type: number) =>
  type === oid.timestamptz ? 'date' : type === oid.bytea ? 'bytes' : 'plain';

/** Values as JSON can carry them; what is not listed stays Postgres's own text. */
const wireTypes = {
  getTypeParser(type: number): (text: string) => unknown {
    if (type === oid.bytea) return (text) => text.slice(2);
    if (type === oid.timestamptz) return toTimestamp;
    if (type === oid.int8) return toInteger;
    if (plainOids.has(type))
      return pg.types.getTypeParser(type, 'text') as (text: string) => unknown;
    return (text) => text;
  },
};

function toInteger(text: string): number | string {
  const value = Number(text);
  return Number.isSafeInteger(value) ? value : text;
}

function toTimestamp(text: string): string {
  const value: unknown = pg.types.getTypeParser(oid.timestamptz, 'text')(text);
  return value instanceof Date && !Number.isNaN(value.getTime()) ? value.toISOString() : text;
}

/** Parameters as the loader marks them. */
function toValue(value: unknown, depth: number): unknown {
  if (depth > maxDepth) throw new TypeError('a parameter is nested too deeply');
  if (typeof value !== 'object' || value === null) return value;
  const { bytes, text, array } = value as { bytes?: unknown; text?: unknown; array?: unknown };
  if (typeof bytes === 'string') return Buffer.from(bytes, 'hex');
  if (typeof text === 'string') return text;
  if (Array.isArray(array)) return array.map((item) => toValue(item, depth + 1));
  throw new TypeError('a parameter is of no known kind');
}
