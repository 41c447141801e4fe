// How a feature offers an operation of the contract to the HTTP edge. The edge authenticates,
// validates, loads the database within the caller's account and authorizes, in that order, before
// a handler runs; a handler only acts.
import type { Readable } from 'node:stream';
import type { Operation, Static, TSchema } from '@coppice/contract';
import type { DatabaseRecord } from './database-record.ts';
import type { Principal } from './principal.ts';

type Input<T> = T extends TSchema ? Static<T> : Record<string, never>;

export interface Call<O extends Operation = Operation> {
  /** Absent for `public` operations only; use `principalOf`-free handlers there. */
  principal: Principal;
  /** The database of `{database_id}`, already known to be the caller's and in scope. */
  database: DatabaseRecord;
  params: Input<O['params']>;
  query: Input<O['query']>;
  body: Input<O['body']>;
  /** Aborted when the client goes away before the answer. */
  signal: AbortSignal;
  /** The same for those who look now and then, at no cost. */
  readonly isGone: boolean;
  /** The client's address. */
  address: string;
}

/** An answer whose status or body is not the plain "JSON of the returned value". */
export class Answer {
  readonly status: number | undefined;
  readonly body: unknown;

  constructor(body: unknown, status?: number) {
    this.body = body;
    this.status = status;
  }
}

/** Ready JSON text as bytes, sent as it is. */
export class JsonBytes {
  readonly bytes: Buffer | Readable;
  /** Called when the last byte has left, or never will: then the memory may be used again. */
  readonly release: (() => void) | undefined;

  constructor(bytes: Buffer | Readable, release?: () => void) {
    this.bytes = bytes;
    this.release = release;
  }
}

export interface Route<O extends Operation = Operation> {
  operation: O;
  handle(call: Call<O>): unknown;
}

export function route<O extends Operation>(
  operation: O,
  handle: (call: Call<O>) => unknown,
): Route {
  return { operation, handle } as unknown as Route;
}
