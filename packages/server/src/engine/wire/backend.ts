// One session on a customer's database, over the instance's Unix socket.
//
//   connecting ──► ready ◄──► busy ──► closed
//
// Exchanges run one after the other; each gets every message that concerns it until the server is
// ready again. This file knows the protocol's frame only; what the messages mean is the
// exchange's business (see collector.ts).
import { connect, type Socket } from 'node:net';
import { MessageReader } from './message-reader.ts';
import {
  cancelRequest,
  discardAll,
  query,
  startup,
  statement,
  sync,
  terminate,
  backend as type,
} from './messages.ts';
import { readError, type ServerError } from './server-error.ts';

/** `I`: idle, `T`: in a transaction, `E`: in a failed one. */
export type TransactionStatus = 'I' | 'T' | 'E';

export interface Exchange {
  message(type: number, bytes: Buffer, start: number, end: number): void;
  oversize(type: number, lengthBytes: number): void;
  ready(status: TransactionStatus): void;
  /** The session ended in the middle. */
  lost(error: Error): void;
}

export interface BackendOptions {
  socketDirectory: string;
  port: number;
  role: string;
  /** Settings of the session, as they are after `discard all`. */
  settings?: Record<string, string>;
  /** Longest message that is read at all. */
  messageLimitBytes: number;
  timeoutMs: number;
}

/** The session ended without Postgres saying why. */
export class ConnectionLost extends Error {
  constructor(cause?: unknown) {
    super('server closed the connection unexpectedly', { cause });
    this.name = 'ConnectionLost';
  }
}

const readBufferBytes = 64 * 1024;

export class Backend {
  status: TransactionStatus = 'I';
  closed = false;
  /** A cancel request may still be on its way: this session must not serve another call. */
  cancelled = false;
  serverVersion = '';
  readonly connectedAtMs = performance.now();
  #onClosed: (() => void) | undefined;
  readonly #socket: Socket;
  readonly #path: string;
  /** The first one is running. */
  readonly #exchanges: Exchange[] = [];
  #cleaning: Promise<boolean> | undefined;
  #processId = 0;
  #secretKey = 0;
  #fatal: ServerError | undefined;

  private constructor(path: string, messageLimitBytes: number) {
    this.#path = path;
    const reader = new MessageReader({
      limitBytes: messageLimitBytes,
      onMessage: (kind, bytes, start, end) => this.#message(kind, bytes, start, end),
      onOversize: (kind, lengthBytes) => this.#exchanges[0]?.oversize(kind, lengthBytes),
    });
    const buffer = Buffer.allocUnsafe(readBufferBytes);
    this.#socket = connect({
      path,
      onread: {
        buffer,
        callback: (length) => {
          reader.push(length === buffer.length ? buffer : buffer.subarray(0, length));
          return true;
        },
      },
    });
    this.#socket.on('error', (error) => this.#end(error));
    this.#socket.on('close', () => this.#end());
  }

  static async connect(options: BackendOptions): Promise<Backend> {
    const path = `${options.socketDirectory}/.s.PGSQL.${options.port}`;
    const backend = new Backend(path, options.messageLimitBytes);
    const deadline = setTimeout(() => backend.destroy(), options.timeoutMs);
    try {
      await backend.#roundTrip(
        startup({
          user: options.role,
          database: 'postgres',
          client_encoding: 'UTF8',
          application_name: 'coppice',
          ...options.settings,
        }),
      );
      return backend;
    } catch (error) {
      backend.destroy();
      // The socket's own error says whether it is worth another try.
      throw error instanceof ConnectionLost ? (error.cause ?? error) : error;
    } finally {
      clearTimeout(deadline);
    }
  }

  get processId(): number {
    return this.#processId;
  }

  set onClosed(listener: () => void) {
    this.#onClosed = listener;
  }

  /**
   * Sends `bytes` and hands the exchange everything up to the next ReadyForQuery. With `cleans`,
   * they end with `discardAll`: for statements that leave no transaction open, since it fails in one.
   */
  run(bytes: Buffer, exchange: Exchange, options: { cleans?: boolean } = {}): void {
    if (this.closed) {
      exchange.lost(this.#fatal ?? new ConnectionLost());
      return;
    }
    this.#exchanges.push(exchange);
    if (options.cleans) this.#awaitCleaning();
    this.#socket.write(bytes);
  }

  /** Goes on with another exchange where the last one stopped short of ReadyForQuery (flush). */
  resume(bytes: Buffer, exchange: Exchange, options: { cleans?: boolean } = {}): void {
    this.#exchanges.shift();
    this.run(bytes, exchange, options);
  }

  /** Sends more within the running exchange. */
  send(bytes: Buffer): void {
    if (!this.closed) this.#socket.write(bytes);
  }

  /** Makes the session as new; answers whether that worked. */
  async clean(): Promise<boolean> {
    const cleaning = this.#cleaning;
    this.#cleaning = undefined;
    if (cleaning) return cleaning;
    try {
      if (this.status !== 'I') await this.ask('rollback');
      await this.#roundTrip(discardAll);
      return true;
    } catch {
      return false;
    }
  }

  /** Rows of one statement of our own, every value as text. */
  ask(sql: string): Promise<(string | null)[][]> {
    return this.#roundTrip(query(sql));
  }

  /** The same with parameters, which other sessions cannot read in pg_stat_activity. */
  askWith(sql: string, params: readonly (string | null)[]): Promise<(string | null)[][]> {
    return this.#roundTrip(Buffer.concat([statement(sql, params), sync]));
  }

  /** Asks the server to stop what this session does. Harmless when it has just ended. */
  cancel(): void {
    this.cancelled = true;
    const socket = connect({ path: this.#path });
    socket.setTimeout(5_000, () => socket.destroy());
    socket.on('error', () => {});
    socket.end(cancelRequest(this.#processId, this.#secretKey));
  }

  close(): void {
    if (!this.closed) this.#socket.end(terminate);
    this.#end();
    // A server that is busy or gone does not hang up by itself.
    const deadline = setTimeout(() => this.#socket.destroy(), 1_000).unref();
    this.#socket.once('close', () => clearTimeout(deadline));
  }

  destroy(): void {
    this.#socket.destroy();
    this.#end();
  }

  #awaitCleaning(): void {
    this.#cleaning = new Promise((resolve) => {
      let isClean = true;
      this.#exchanges.push({
        message(kind) {
          if (kind === type.errorResponse) isClean = false;
        },
        oversize() {},
        ready: () => resolve(isClean),
        lost: () => resolve(false),
      });
    });
  }

  #roundTrip(bytes: Buffer): Promise<(string | null)[][]> {
    return new Promise((resolve, reject) => {
      const rows: (string | null)[][] = [];
      let failure: ServerError | undefined;
      this.run(bytes, {
        message(kind, body, start, end) {
          if (kind === type.dataRow) rows.push(readRow(body, start));
          else if (kind === type.errorResponse) failure = readError(body, start, end);
        },
        oversize() {},
        ready: () => (failure ? reject(failure) : resolve(rows)),
        lost: (error) => reject(failure ?? error),
      });
    });
  }

  #message(kind: number, bytes: Buffer, start: number, end: number): void {
    switch (kind) {
      case type.readyForQuery: {
        this.status = String.fromCharCode(bytes[start]!) as TransactionStatus;
        this.#exchanges.shift()?.ready(this.status);
        return;
      }
      case type.backendKeyData:
        this.#processId = bytes.readInt32BE(start);
        this.#secretKey = bytes.readInt32BE(start + 4);
        return;
      case type.parameterStatus: {
        const [name, value] = bytes.toString('utf8', start, end).split('\0');
        if (name === 'server_version') this.serverVersion = value ?? '';
        return;
      }
      case type.authentication:
        // The instance trusts its socket; anything but "ok" cannot be answered.
        if (bytes.readInt32BE(start) !== 0) this.destroy();
        return;
      case type.errorResponse: {
        const error = readError(bytes, start, end);
        if (error.isFatal) this.#fatal = error;
        break;
      }
    }
    this.#exchanges[0]?.message(kind, bytes, start, end);
  }

  #end(error?: Error): void {
    if (this.closed) return;
    this.closed = true;
    const reason = this.#fatal ?? new ConnectionLost(error);
    for (const exchange of this.#exchanges.splice(0)) exchange.lost(reason);
    this.#onClosed?.();
  }
}

function readRow(bytes: Buffer, start: number): (string | null)[] {
  const row: (string | null)[] = [];
  let at = start + 2;
  for (let left = bytes.readInt16BE(start); left > 0; left--) {
    const length = bytes.readInt32BE(at);
    at += 4;
    if (length < 0) row.push(null);
    else {
      row.push(bytes.toString('utf8', at, at + length));
      at += length;
    }
  }
  return row;
}
