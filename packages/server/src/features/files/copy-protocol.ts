// COPY in binary, streamed in constant memory and without copying content: `pg` reads messages as a
// whole and turns the rows of ordinary queries into text. So while a COPY runs, its content is read
// from and written to the session's socket here, and every other message is left to `pg`.
// https://www.postgresql.org/docs/current/protocol-message-formats.html
// https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-FILE-FORMATS
import type { Duplex } from 'node:stream';
import type pg from 'pg';

interface CopyConnection extends pg.Connection {
  endCopyFrom(): void;
  sendCopyFail(reason: string): void;
}

/** What `pg` calls while a query of our own making is the active one. */
abstract class Copy implements pg.Submittable {
  readonly #text: string;
  readonly finished = Promise.withResolvers<void>();

  constructor(text: string) {
    this.#text = text;
    // Whoever awaits it hears of a failure; nobody may.
    this.finished.promise.catch(() => {});
  }

  submit(connection: pg.Connection): void {
    connection.query(this.#text);
  }
  handleReadyForQuery(): void {
    this.finished.resolve();
  }
  handleError(error: Error): void {
    this.finished.reject(error);
  }
  handleRowDescription(): void {}
  handleCommandComplete(): void {}
  handlePortalSuspended(): void {}
  handleEmptyQuery(): void {}
}

const copyData = 0x64; // d
const readyForQuery = 0x5a; // Z
const messageHeaderBytes = 5;
const fileHeader = Buffer.concat([Buffer.from('PGCOPY\n\xff\r\n\0', 'latin1'), Buffer.alloc(8)]);
const trailer = Buffer.from([0xff, 0xff]);
/** Not read from the socket while this much waits to be used. */
const queueBytes = 1024 * 1024;

/** A part of a row's bytes. */
export interface RowPiece {
  n: number;
  /** Where in the row it begins. */
  at: number;
  bytes: Buffer;
}

/** The rows of a query with the columns `n integer, data bytea`, piece by piece. */
export async function* copyOut(client: pg.Client, query: string): AsyncGenerator<RowPiece> {
  const queue: RowPiece[] = [];
  let queuedBytes = 0;
  const ended: { how?: 'well' | { error: unknown } } = {};
  let wake = () => {};
  const copy = new CopyOut(query, (piece) => {
    queue.push(piece);
    queuedBytes += piece.bytes.length;
    if (queuedBytes > queueBytes) copy.stream?.pause();
    wake();
  });
  copy.finished.promise.then(
    () => {
      ended.how = 'well';
      wake();
    },
    (error) => {
      ended.how = { error };
      wake();
    },
  );
  client.query(copy);
  try {
    for (;;) {
      const piece = queue.shift();
      if (piece) {
        yield piece;
        queuedBytes -= piece.bytes.length;
        if (queuedBytes < queueBytes / 2) copy.stream?.resume();
      } else if (ended.how === 'well') return;
      else if (ended.how) throw ended.how.error;
      else
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
    }
  } finally {
    // A reader that leaves early: there may be gigabytes to come, so the session ends with it.
    if (!ended.how) copy.stream?.destroy();
  }
}

class CopyOut extends Copy {
  stream: Duplex | undefined;
  readonly #onPiece: (piece: RowPiece) => void;
  /** The listeners of `pg`, which get everything but content. */
  #others: ((bytes: Buffer) => void)[] = [];
  readonly #header = Buffer.alloc(messageHeaderBytes);
  #headerFilled = 0;
  #bodyLeft = 0;
  // Within the content: the file's header, then rows.
  readonly #rowHeader = Buffer.alloc(fileHeader.length);
  #rowHeaderFilled = 0;
  #rowHeaderWanted = fileHeader.length;
  #n = 0;
  #rowAt = 0;
  #rowLeft = 0;

  constructor(query: string, onPiece: (piece: RowPiece) => void) {
    super(`copy (${query}) to stdout (format binary)`);
    this.#onPiece = onPiece;
  }

  override submit(connection: pg.Connection): void {
    this.stream = connection.stream;
    this.#others = this.stream.listeners('data') as ((bytes: Buffer) => void)[];
    this.stream.removeAllListeners('data');
    this.stream.on('data', this.#read);
    super.submit(connection);
  }

  readonly #read = (bytes: Buffer): void => {
    for (let at = 0; at < bytes.length; ) {
      if (this.#headerFilled < messageHeaderBytes) {
        const taken = bytes.copy(
          this.#header,
          this.#headerFilled,
          at,
          at + messageHeaderBytes - this.#headerFilled,
        );
        at += taken;
        this.#headerFilled += taken;
        if (this.#headerFilled < messageHeaderBytes) return;
        this.#bodyLeft = this.#header.readInt32BE(1) - 4;
        if (this.#header[0] !== copyData) this.#passOn(Buffer.from(this.#header));
      }
      const body = bytes.subarray(at, at + this.#bodyLeft);
      at += body.length;
      this.#bodyLeft -= body.length;
      if (this.#bodyLeft === 0) this.#headerFilled = 0;
      if (this.#header[0] === copyData) this.#readRows(body);
      else {
        if (this.#header[0] === readyForQuery && this.#bodyLeft === 0) this.#giveBack();
        this.#passOn(body);
      }
    }
  };

  #passOn(bytes: Buffer): void {
    if (bytes.length > 0) for (const listener of this.#others) listener.call(this.stream, bytes);
  }

  #giveBack(): void {
    this.stream?.removeListener('data', this.#read);
    for (const listener of this.#others) this.stream?.on('data', listener);
    this.stream?.resume();
  }

  /** A row: field count (-1 ends it all), length and value of `n`, length and value of `data`. */
  #readRows(bytes: Buffer): void {
    for (let at = 0; at < bytes.length; ) {
      if (this.#rowLeft > 0) {
        const piece = bytes.subarray(at, at + this.#rowLeft);
        this.#onPiece({ n: this.#n, at: this.#rowAt, bytes: piece });
        at += piece.length;
        this.#rowAt += piece.length;
        this.#rowLeft -= piece.length;
        continue;
      }
      const taken = bytes.copy(
        this.#rowHeader,
        this.#rowHeaderFilled,
        at,
        at + this.#rowHeaderWanted - this.#rowHeaderFilled,
      );
      at += taken;
      this.#rowHeaderFilled += taken;
      if (this.#rowHeaderFilled < this.#rowHeaderWanted) return;
      if (this.#rowHeaderWanted === 14) {
        this.#n = this.#rowHeader.readInt32BE(6);
        this.#rowAt = 0;
        this.#rowLeft = this.#rowHeader.readInt32BE(10);
      }
      this.#rowHeaderFilled = 0;
      this.#rowHeaderWanted = 14;
    }
  }
}

/**
 * Fills a table with the columns `content_id bigint, n integer, data bytea`: rows of `rowBytes`, the
 * last one shorter. Resolves with the number of bytes. What `content` throws ends the COPY, and is
 * thrown.
 */
export async function copyIn(
  client: pg.Client,
  table: string,
  contentId: bigint,
  rowBytes: number,
  content: AsyncIterable<Buffer>,
): Promise<number> {
  const copy = new CopyIn(`copy ${table} (content_id, n, data) from stdin (format binary)`);
  client.query(copy);
  const connection = await copy.begun;
  const { stream } = connection;
  let totalBytes = 0;
  let n = 0;
  let slices: Buffer[] = [];
  let slicesBytes = 0;

  const send = async (buffers: Buffer[]) => {
    stream.cork();
    for (const buffer of buffers) stream.write(buffer);
    stream.uncork();
    if (stream.writableNeedDrain) await Promise.race([drained(stream), copy.finished.promise]);
  };
  const sendRow = async () => {
    const header = Buffer.allocUnsafe(messageHeaderBytes + 26);
    header[0] = copyData;
    header.writeInt32BE(4 + 26 + slicesBytes, 1);
    header.writeInt16BE(3, 5);
    header.writeInt32BE(8, 7);
    header.writeBigInt64BE(contentId, 11);
    header.writeInt32BE(4, 19);
    header.writeInt32BE(n++, 23);
    header.writeInt32BE(slicesBytes, 27);
    const row = [header, ...slices];
    slices = [];
    slicesBytes = 0;
    await send(row);
  };

  try {
    await send([message(fileHeader)]);
    for await (const bytes of content) {
      totalBytes += bytes.length;
      for (let at = 0; at < bytes.length; ) {
        const slice = bytes.subarray(at, at + rowBytes - slicesBytes);
        slices.push(slice);
        slicesBytes += slice.length;
        at += slice.length;
        if (slicesBytes === rowBytes) await sendRow();
      }
    }
    if (slicesBytes > 0) await sendRow();
    await send([message(trailer)]);
    connection.endCopyFrom();
  } catch (error) {
    connection.sendCopyFail('given up');
    await copy.finished.promise.catch(() => {});
    throw error;
  }
  await copy.finished.promise;
  return totalBytes;
}

class CopyIn extends Copy {
  readonly #begun = Promise.withResolvers<CopyConnection>();

  get begun(): Promise<CopyConnection> {
    return this.#begun.promise;
  }
  handleCopyInResponse(connection: CopyConnection): void {
    this.#begun.resolve(connection);
  }
  override handleError(error: Error): void {
    this.#begun.reject(error);
    super.handleError(error);
  }
}

function message(body: Buffer): Buffer {
  const bytes = Buffer.allocUnsafe(messageHeaderBytes + body.length);
  bytes[0] = copyData;
  bytes.writeInt32BE(4 + body.length, 1);
  body.copy(bytes, messageHeaderBytes);
  return bytes;
}

function drained(stream: Duplex): Promise<void> {
  return new Promise((resolve, reject) => {
    const settle = () => {
      stream.removeListener('drain', onDrain);
      stream.removeListener('close', onClose);
    };
    const onDrain = () => {
      settle();
      resolve();
    };
    const onClose = () => {
      settle();
      reject(new Error('the session ended'));
    };
    stream.once('drain', onDrain);
    stream.once('close', onClose);
  });
}
