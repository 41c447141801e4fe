// `ctx.db` on the service's side: queries of one run, as its role, each on a clean session; a
// transaction keeps its session until it ends. Whatever is still open when the run ends is cut off.
import pg from 'pg';
import type { Sessions } from '../../engine/sessions.ts';
import { quoteLiteral } from '../../kernel/sql-quote.ts';
import type { RunRoles } from './run-roles.ts';

export interface DatabaseCallsDeps {
  sessions: Sessions;
  roles: RunRoles;
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
  /** Cuts off everything that is still open. */
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
  /** Ends the use of the session. */
  release(): void;
}

const maxResultBytes = 16 * 1024 * 1024;
const maxTransactions = 4;
const maxDepth = 8;

export function createDatabaseCalls(deps: DatabaseCallsDeps, run: DatabaseRun): DatabaseCalls {
  const ended = new AbortController();
  const transactions = new Map<number, Held>();
  let lastTransaction = 0;
  let used = false;

  /** A session that stays in use until it is released, or the run ends. */
  async function hold(): Promise<Held> {
    const { databaseId, runAs, bypassRls } = run;
    used = true;
    const role = await deps.roles.sessionRole(databaseId, runAs, bypassRls);
    return new Promise((resolve, reject) => {
      deps.sessions
        .use(databaseId, { role, signal: ended.signal }, async (client) => {
          await client.query(settings(run));
          const held = Promise.withResolvers<void>();
          ended.signal.addEventListener('abort', () => held.resolve(), { once: true });
          resolve({ client, release: held.resolve });
          await held.promise;
        })
        .catch((error) => {
          // The role may have been dropped, or made anew, since it was looked up.
          deps.roles.forget(databaseId);
          reject(error);
        });
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
        return await runQuery(session, sql, values);
      } finally {
        session.release();
      }
    },

    async begin() {
      if (transactions.size >= maxTransactions)
        throw new Error(`a run may have ${maxTransactions} transactions at once`);
      const session = await hold();
      try {
        await session.client.query('begin');
      } catch (error) {
        session.release();
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
        // Postgres answers ROLLBACK to the commit of a transaction that had failed.
        if (how === 'commit' && command === 'ROLLBACK')
          throw new Error('the transaction had failed and was rolled back');
      } finally {
        session.release();
      }
    },

    async close() {
      if (!used) return;
      ended.abort(new Error('the run has ended'));
      if (run.bypassRls) await deps.roles.handOver(run.databaseId, run.runAs);
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
    if (error instanceof pg.DatabaseError) Object.assign(error, { name: 'DatabaseError' });
    throw error;
  } finally {
    stream.off('data', count);
  }
}

const oid = { bytea: 17, int8: 20, float4: 700, float8: 701, timestamptz: 1184 };
/** Numbers, booleans, JSON, and arrays of these and of text: as node-postgres reads them. */
const plainOids = new Set([
  16, 21, 23, 26, 114, 3802, 1000, 1005, 1007, 1009, 1014, 1015, 1021, 1022, 2951, 199, 3807,
]);

const kindOf = (type: number) =>
  type === oid.timestamptz ? 'date' : type === oid.bytea ? 'bytes' : 'plain';

/** Values as JSON can carry them; what is not listed stays Postgres's own text. */
const wireTypes = {
  getTypeParser(type: number): (text: string) => unknown {
    if (type === oid.bytea) return (text) => text.slice(2);
    if (type === oid.timestamptz) return toTimestamp;
    if (type === oid.int8) return toInteger;
    if (type === oid.float4 || type === oid.float8) return toFloat;
    if (plainOids.has(type))
      return pg.types.getTypeParser(type, 'text') as (text: string) => unknown;
    return (text) => text;
  },
};

function toInteger(text: string): number | string {
  const value = Number(text);
  return Number.isSafeInteger(value) ? value : text;
}

function toFloat(text: string): number | string {
  const value = Number(text);
  return Number.isFinite(value) ? value : text;
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
