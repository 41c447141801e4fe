// Runs a customer's SQL in a session and answers its last statement's result as JSON.
//
// Text without parameters goes through the simple protocol, so that several statements share one
// implicit transaction, as with psql's -c. Parameters need the extended one. A single statement
// whose columns hold anonymous records is described first and wrapped in `to_json`, because their
// text does not tell the fields' names and types.
//
// A read-only call runs inside a transaction of ours that has taken its snapshot before the
// customer's text arrives: from then on Postgres itself refuses to make it writable, whatever SET,
// function or block tries. What is left is ending that transaction. So each statement goes alone
// (the server refuses two in one message), and after each the next one finds a read-only
// transaction with a snapshot again, its own or a new one.
import { isUtf8 } from 'node:buffer';
import type { Backend } from './backend.ts';
import { Collector, type Column, type Refusal, readColumns } from './collector.ts';
import type { JsonText } from './json-writer.ts';
import {
  bind,
  describePortal,
  describeStatement,
  discardAll,
  execute as executePortal,
  flush,
  parse,
  query,
  queryThenDiscard,
  sync,
  backend as type,
} from './messages.ts';
import { encodeParameter } from './parameters.ts';
import { readError, ServerError } from './server-error.ts';
import { copiesThroughClient, splitStatements, TooManyStatements } from './statements.ts';
import { type BuiltinTypes, isOpaque } from './types.ts';

export interface SqlRequest {
  text: string;
  /** Binds `$1…` of a single statement. */
  params?: readonly unknown[];
  readOnly: boolean;
}

export interface SqlLimits {
  resultBytes: number;
}

export type SqlOutcome =
  | { kind: 'answer'; json: JsonText; tags: readonly string[] }
  /** `offset`: where in the text the failing statement starts, for its position. */
  | { kind: 'error'; error: ServerError; offset: number; tags: readonly string[] }
  | { kind: 'empty' }
  | { kind: 'refused'; reason: Refusal | 'encoding' | 'too_many' };

interface Session {
  backend: Backend;
  builtins: BuiltinTypes;
  limits: SqlLimits;
  onStatement: () => void;
}

/** Any query takes the snapshot that fixes the transaction's mode. */
const takeSnapshot = 'select 1';
const beginReadOnly = `begin transaction read only; ${takeSnapshot}`;

/**
 * Single statements that neither open a transaction nor wait for more input. The session's cleaning
 * is sent along with them: it costs no write of its own, and the answer does not wait for it.
 */
const leavesNothingOpen =
  /^\s*(?:select|insert|update|delete|merge|values|table|with)\b[^;]*;?\s*$/i;

/** Records come from row constructors, functions, subqueries and pg_stats: see `isOpaque`. */
const mayReturnOpaque = /\(|pg_stat/i;
const describeLimitCharacters = 64 * 1024;

export async function executeSql(session: Session, request: SqlRequest): Promise<SqlOutcome> {
  try {
    return await execute(session, request);
  } catch (error) {
    if (error instanceof TooManyStatements) return { kind: 'refused', reason: 'too_many' };
    throw error;
  }
}

async function execute(session: Session, request: SqlRequest): Promise<SqlOutcome> {
  if (request.text.includes('\0'))
    return failure(
      new ServerError(
        new Map([
          ['C', '22021'],
          ['M', nulMessage],
        ]),
      ),
      0,
      [],
    );
  if (/\bcopy\b/i.test(request.text) && copies(request.text))
    return { kind: 'refused', reason: 'copy' };
  if (request.readOnly) return runReadOnly(session, request);
  if (request.params) return runDescribed(session, request.text, request.params, 0);
  if (request.text.length <= describeLimitCharacters && mayReturnOpaque.test(request.text)) {
    const single = splitStatements(request.text).length === 1;
    if (single) return runDescribed(session, request.text, undefined, 0);
  }
  return runSimple(session, request.text);
}

/** Refused before anything runs: once rows flow, the rest of the call could be done already. */
const copies = (text: string) =>
  splitStatements(text).some((statement) => copiesThroughClient(text, statement));

const nulMessage = 'invalid byte sequence for encoding "UTF8": 0x00';

async function runSimple(session: Session, text: string): Promise<SqlOutcome> {
  const { backend } = session;
  const collector = newCollector(session, { isExtended: false });
  if (leavesNothingOpen.test(text))
    backend.run(queryThenDiscard(text), collector, { cleans: true });
  else backend.run(query(text), collector);
  return outcome(collector, 0);
}

async function runReadOnly(session: Session, request: SqlRequest): Promise<SqlOutcome> {
  const { backend } = session;
  const statements = request.params
    ? [{ start: 0, end: request.text.length }]
    : splitStatements(request.text);
  let last: SqlOutcome = { kind: 'empty' };
  for (const { start, end } of statements) {
    // After COMMIT AND CHAIN the transaction is new, and read-only still: fix it again.
    await backend.ask(backend.status === 'T' ? takeSnapshot : beginReadOnly);
    last = await runDescribed(session, request.text.slice(start, end), request.params, start);
    if (last.kind !== 'answer') return last;
  }
  return last;
}

/** One statement, described before it runs. */
async function runDescribed(
  session: Session,
  text: string,
  params: readonly unknown[] | undefined,
  offset: number,
): Promise<SqlOutcome> {
  const { backend } = session;
  const isInTransaction = backend.status === 'T';
  const described = await describe(backend, text);
  if (described instanceof ServerError) {
    await synchronize(backend);
    return failure(described, offset, []);
  }
  if (!params && described.parameterCount > 0 && !isInTransaction) {
    // Postgres words this better when it is not asked to infer types.
    await synchronize(backend);
    return runSimple(session, text);
  }
  let wrappedColumns: Column[] | undefined;
  const wrapped = params ? undefined : wrapOpaque(text, described.columns);
  if (wrapped !== undefined) {
    if (!((await describe(backend, wrapped, 'resume')) instanceof ServerError))
      wrappedColumns = described.columns;
    else {
      // It cannot be a subquery (a WITH that writes, say): records stay text then.
      await synchronize(backend);
      if (isInTransaction) {
        await backend.ask('rollback');
        await backend.ask(beginReadOnly);
      }
      await describe(backend, text);
    }
  }
  const values = (params ?? []).map((value, index) =>
    encodeParameter(value, described.parameterOids[index] ?? 0, session.builtins),
  );
  const collector = newCollector(session, { isExtended: true, wrappedColumns });
  const cleans = !isInTransaction && leavesNothingOpen.test(text);
  const messages = [bind(values), describePortal, executePortal, sync];
  if (cleans) messages.push(discardAll);
  backend.resume(Buffer.concat(messages), collector, { cleans });
  return outcome(collector, offset);
}

interface Description {
  parameterCount: number;
  parameterOids: number[];
  columns: Column[];
}

/** Leaves the session within the exchange: bind and execute, or synchronize, must follow. */
function describe(
  backend: Backend,
  text: string,
  how: 'run' | 'resume' = 'run',
): Promise<Description | ServerError> {
  return new Promise((resolve, reject) => {
    const parameterOids: number[] = [];
    backend[how](Buffer.concat([parse(text), describeStatement, flush]), {
      message(kind, bytes, start, end) {
        if (kind === type.parameterDescription)
          for (let at = start + 2; at < end; at += 4) parameterOids.push(bytes.readUInt32BE(at));
        else if (kind === type.errorResponse) resolve(readError(bytes, start, end));
        else if (kind === type.rowDescription || kind === type.noData)
          resolve({
            parameterCount: parameterOids.length,
            parameterOids,
            columns: kind === type.noData ? [] : readColumns(bytes, start),
          });
      },
      oversize() {},
      ready() {},
      lost: reject,
    });
  });
}

/** After an error the server skips everything up to the next sync. */
function synchronize(backend: Backend): Promise<void> {
  return new Promise((resolve, reject) => {
    backend.resume(sync, {
      message() {},
      oversize() {},
      ready: () => resolve(),
      lost: reject,
    });
  });
}

/** The query with its opaque columns as JSON, or undefined if it has none or is no query. */
function wrapOpaque(text: string, columns: readonly Column[]): string | undefined {
  if (!columns.some(({ oid }) => isOpaque(oid))) return undefined;
  const statement = splitStatements(text)[0];
  const first = statement?.words[0];
  if (!statement || !['select', 'with', 'values', 'table'].includes(first ?? '')) return undefined;
  const names = columns.map((_, index) => `c${index}`);
  const list = names.map((name, index) =>
    isOpaque(columns[index]!.oid) ? `pg_catalog.to_json(${name})` : name,
  );
  const inner = text.slice(statement.start, statement.end);
  return `select ${list.join(', ')} from (\n${inner}\n) as q(${names.join(', ')})`;
}

function newCollector(
  session: Session,
  options: { isExtended: boolean; wrappedColumns?: Column[] },
): Collector {
  return new Collector({
    backend: session.backend,
    builtins: session.builtins,
    limitBytes: session.limits.resultBytes,
    onStatement: session.onStatement,
    ...options,
  });
}

async function outcome(collector: Collector, offset: number): Promise<SqlOutcome> {
  await collector.done;
  const { refusal, error, tags } = collector;
  if (refusal) return { kind: 'refused', reason: refusal };
  if (error) return failure(error, offset, tags);
  if (collector.isEmpty) return { kind: 'empty' };
  let json: JsonText;
  try {
    json = await collector.finish();
  } catch (lookupError) {
    // The session is as the customer left it: its own timeouts hold for our questions too.
    if (lookupError instanceof ServerError) return failure(lookupError, offset, tags);
    throw lookupError;
  }
  if (collector.refusal) return { kind: 'refused', reason: collector.refusal };
  // The customer may have asked for another client_encoding.
  if (!json.chunks.every((chunk) => isUtf8(chunk))) return { kind: 'refused', reason: 'encoding' };
  return { kind: 'answer', json, tags };
}

function failure(error: ServerError, offset: number, tags: readonly string[]): SqlOutcome {
  return { kind: 'error', error, offset, tags };
}
