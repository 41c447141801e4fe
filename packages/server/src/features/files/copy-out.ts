// Reads one bytea column in binary through COPY: `pg` turns the rows of ordinary queries into text,
// which for bytes costs twice the traffic and a decoding.
import type pg from 'pg';

/** Runs `copy (select …) to stdout (format binary)` and gives the column's values. */
export function copyOut(client: pg.Client, select: string): Promise<Buffer[]> {
  return new Promise((resolve, reject) => {
    client.query(new CopyOut(`copy (${select}) to stdout (format binary)`, resolve, reject));
  });
}

/** https://www.postgresql.org/docs/current/sql-copy.html#id-1.9.3.55.9.4.5 */
const headerBytes = 19;

class CopyOut implements pg.Submittable {
  readonly #text: string;
  readonly #resolve: (values: Buffer[]) => void;
  readonly #reject: (error: Error) => void;
  readonly #values: Buffer[] = [];
  #headerSeen = false;

  constructor(text: string, resolve: (values: Buffer[]) => void, reject: (error: Error) => void) {
    this.#text = text;
    this.#resolve = resolve;
    this.#reject = reject;
  }

  submit(connection: pg.Connection): void {
    connection.query(this.#text);
  }

  /** One row a message, the header before the first; a field count of -1 ends it. */
  handleCopyData({ chunk }: { chunk: Buffer }): void {
    let at = 0;
    if (!this.#headerSeen) {
      this.#headerSeen = true;
      at = headerBytes;
    }
    if (chunk.length - at < 6) return;
    const length = chunk.readInt32BE(at + 2);
    // The parser uses its buffer again: the bytes must be copied to be kept.
    this.#values.push(Buffer.from(chunk.subarray(at + 6, at + 6 + length)));
  }

  handleReadyForQuery(): void {
    this.#resolve(this.#values);
  }

  handleError(error: Error): void {
    this.#reject(error);
  }

  handleRowDescription(): void {}
  handleCommandComplete(): void {}
  handlePortalSuspended(): void {}
  handleEmptyQuery(): void {}
}
