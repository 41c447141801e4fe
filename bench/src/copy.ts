// COPY in binary through `pg`, both ways: what the files are compared with.
import type pg from 'pg';

interface CopyConnection extends pg.Connection {
  sendCopyFromChunk(chunk: Buffer): void;
  endCopyFrom(): void;
}

abstract class Copy implements pg.Submittable {
  readonly done: Promise<void>;
  readonly #text: string;
  #resolve: () => void = () => {};
  #reject: (error: Error) => void = () => {};

  constructor(text: string) {
    this.#text = text;
    this.done = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  submit(connection: pg.Connection): void {
    connection.query(this.#text);
  }
  handleReadyForQuery(): void {
    this.#resolve();
  }
  handleError(error: Error): void {
    this.#reject(error);
  }
  handleRowDescription(): void {}
  handleCommandComplete(): void {}
  handlePortalSuspended(): void {}
  handleEmptyQuery(): void {}
}

class CopyIn extends Copy {
  readonly #content: Buffer;
  readonly #rowBytes: number;

  constructor(text: string, content: Buffer, rowBytes: number) {
    super(text);
    this.#content = content;
    this.#rowBytes = rowBytes;
  }

  async handleCopyInResponse(connection: CopyConnection): Promise<void> {
    connection.sendCopyFromChunk(
      Buffer.concat([Buffer.from('PGCOPY\n\xff\r\n\0', 'latin1'), Buffer.alloc(8)]),
    );
    for (let n = 0; n * this.#rowBytes < this.#content.length; n++) {
      const bytes = this.#content.subarray(n * this.#rowBytes, (n + 1) * this.#rowBytes);
      const head = Buffer.alloc(14);
      head.writeInt16BE(2, 0);
      head.writeInt32BE(4, 2);
      head.writeInt32BE(n, 6);
      head.writeInt32BE(bytes.length, 10);
      connection.sendCopyFromChunk(Buffer.concat([head, bytes]));
      if (connection.stream.writableLength > 1 << 20)
        await new Promise((resolve) => connection.stream.once('drain', resolve));
    }
    connection.sendCopyFromChunk(Buffer.from([0xff, 0xff]));
    connection.endCopyFrom();
  }
}

class CopyOut extends Copy {
  readonly #onBytes: (bytes: Buffer) => void;

  constructor(text: string, onBytes: (bytes: Buffer) => void) {
    super(text);
    this.#onBytes = onBytes;
  }
  handleCopyData({ chunk }: { chunk: Buffer }): void {
    this.#onBytes(chunk);
  }
}

/** Into a table `(n integer, data bytea)`, `rowBytes` a row. */
export async function copyIn(client: pg.Client, table: string, content: Buffer, rowBytes: number) {
  const copy = new CopyIn(`copy ${table} from stdin (format binary)`, content, rowBytes);
  client.query(copy);
  await copy.done;
}

export async function copyOut(client: pg.Client, query: string, onBytes: (bytes: Buffer) => void) {
  const copy = new CopyOut(`copy (${query}) to stdout (format binary)`, onBytes);
  client.query(copy);
  await copy.done;
}
