// SQL over HTTP: each call is a clean session, limited in time and size.
import { Readable } from 'node:stream';
import { ConnectionLost } from '../../engine/wire/backend.ts';
import { type Backends, CallerGone, QueueTimeout, type Use } from '../../engine/wire/backends.ts';
import { executeSql, type SqlOutcome } from '../../engine/wire/execute.ts';
import type { JsonText } from '../../engine/wire/json-writer.ts';
import { ServerError } from '../../engine/wire/server-error.ts';
import { TooManyStatements } from '../../engine/wire/statements.ts';
import {
  type AppError,
  badRequest,
  forbidden,
  rateLimited,
  unprocessable,
} from '../../kernel/app-error.ts';
import type { QueryRecorder } from '../../kernel/query-recorder.ts';
import { JsonBytes } from '../../kernel/route.ts';

export interface SqlLimits {
  statementTimeoutMs: number;
  resultBytes: number;
}

export interface SqlCall {
  databaseId: string;
  text: string;
  params?: readonly unknown[] | undefined;
  readOnly: boolean;
  isCallerGone(): boolean;
}

export interface SqlService {
  execute(call: SqlCall): Promise<JsonBytes>;
}

const parameterLimit = 65_535;
/** Answers up to this size leave in one piece, with their length announced. */
const wholeAnswerBytes = 256 * 1024;

/** What a read-only session is refused: writing, rights it lacks, leaving its transaction. */
const writeRefusals = new Set([
  '25006', // read_only_sql_transaction
  '42501', // insufficient_privilege
  '25001', // active_sql_transaction: SET TRANSACTION READ WRITE, VACUUM
  '2D000', // invalid_transaction_termination: COMMIT inside a block or procedure
]);

/** Custom settings stay known to a session as '', and a seed stays set, even after DISCARD ALL. */
const leavesTraces = /set_config|setseed|\bset\s+(?:session\s+|local\s+)?[\w"$]+\s*\./i;
/** These change what later sessions start with. */
const altersDefaults = /\balter\s+(?:role|user|group|database)\b/i;
const alteringTags = new Set(['ALTER ROLE', 'ALTER DATABASE']);

export function createSqlService(deps: {
  backends: Backends;
  recorder: QueryRecorder;
  limits: SqlLimits;
}): SqlService {
  const { backends, recorder, limits } = deps;

  async function run(use: Use, call: SqlCall): Promise<SqlOutcome> {
    const { text, params, readOnly } = call;
    if (leavesTraces.test(text)) use.guard.isDirty = true;
    const outcome = await executeSql(
      {
        backend: use.backend,
        builtins: use.builtins,
        limits: { resultBytes: limits.resultBytes },
        onStatement: () => use.guard.restartClock(),
      },
      { text, readOnly, ...(params ? { params } : {}) },
    );
    if ('tags' in outcome && outcome.tags.some((tag) => alteringTags.has(tag))) use.outdate();
    else if (altersDefaults.test(text)) use.outdate();
    const stopped = use.guard.stopReason;
    if (stopped === 'timeout') throw timedOut();
    if (stopped === 'client_gone') throw new CallerGone('the client went away');
    return outcome;
  }

  const timedOut = () =>
    unprocessable(
      `canceling statement after ${limits.statementTimeoutMs / 1000} s, the limit over HTTP: ` +
        'do it in smaller parts, or connect with the connection string',
    );

  function answer(outcome: SqlOutcome, call: SqlCall): JsonBytes {
    switch (outcome.kind) {
      case 'answer':
        return toBytes(outcome.json);
      case 'empty':
        throw badRequest('there is no statement to run');
      case 'error':
        throw refused(outcome.error, call, outcome.offset);
      case 'refused':
        throw unprocessable(refusals[outcome.reason](limits));
    }
  }

  return {
    async execute(call) {
      const { databaseId, text, readOnly } = call;
      if (call.params && call.params.length > parameterLimit)
        throw badRequest(`params: at most ${parameterLimit} values`);
      const startedMs = performance.now();
      let failed = true;
      try {
        const outcome = await backends.use(
          databaseId,
          {
            role: readOnly ? 'readonly' : 'admin',
            ...(readOnly ? { settings: { default_transaction_read_only: 'on' } } : {}),
            isCallerGone: call.isCallerGone,
          },
          (use) => run(use, call).catch((error) => rethrow(error, use)),
        );
        failed = outcome.kind !== 'answer';
        return answer(outcome, call);
      } catch (error) {
        if (error instanceof ServerError) throw refused(error, call, 0);
        if (error instanceof ConnectionLost) throw unprocessable(error.message, error);
        if (error instanceof CallerGone) throw badRequest(error.message);
        if (error instanceof QueueTimeout)
          throw rateLimited(`${error.message}; try again when others have ended`, 1);
        throw error;
      } finally {
        recorder.query(databaseId, performance.now() - startedMs, failed, text);
      }
    },
  };

  /** A session that had to be cut looks lost; say why it was. */
  function rethrow(error: unknown, use: Use): never {
    throw use.guard.stopReason === 'timeout' ? timedOut() : error;
  }
}

function refused(error: ServerError, { text, readOnly }: SqlCall, offset: number): AppError {
  const message = error.render(text, offset);
  return readOnly && writeRefusals.has(error.code)
    ? forbidden(`read-only token: ${message}`)
    : unprocessable(message, error);
}

const refusals: Record<
  Extract<SqlOutcome, { kind: 'refused' }>['reason'],
  (limits: SqlLimits) => string
> = {
  copy: () =>
    'COPY FROM STDIN and COPY TO STDOUT cannot be used over HTTP: ' +
    'use INSERT and SELECT, or psql with the connection string',
  too_large: ({ resultBytes }) =>
    `the result is larger than ${resultBytes / 1024 / 1024} MiB, the limit over HTTP: ` +
    'ask for fewer rows or columns (LIMIT), or connect with the connection string',
  too_many: () => new TooManyStatements().message,
  encoding: () => 'the result is not UTF-8: leave client_encoding as it is',
};

function toBytes(json: JsonText): JsonBytes {
  const { chunks, byteLength } = json;
  if (chunks.length === 1) return new JsonBytes(chunks[0]!);
  if (byteLength <= wholeAnswerBytes) {
    const whole = Buffer.concat(chunks, byteLength);
    json.release();
    return new JsonBytes(whole);
  }
  return new JsonBytes(Readable.from(chunks, { objectMode: false }), () => json.release());
}
