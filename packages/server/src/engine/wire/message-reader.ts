// Cuts the server's byte stream into messages. It never copies a message that lies whole in a
// chunk; a cut one is gathered in a buffer that grows to its size, and one that is too long to be
// wanted is skipped without being gathered.

/** `start` and `end` bound the message's body in `bytes`, which is reused after the call. */
export type OnMessage = (type: number, bytes: Buffer, start: number, end: number) => void;

export interface MessageReaderOptions {
  onMessage: OnMessage;
  /** A message longer than `limitBytes` went by, unread. */
  onOversize(type: number, lengthBytes: number): void;
  limitBytes: number;
}

const headerBytes = 5;
const keptBytes = 64 * 1024;
const eagerBytes = 16 * 1024 * 1024;

export class MessageReader {
  readonly #options: MessageReaderOptions;
  readonly #onMessage: OnMessage;
  #pending = Buffer.allocUnsafe(0);
  #pendingBytes = 0;
  #skipBytes = 0;

  constructor(options: MessageReaderOptions) {
    this.#options = options;
    this.#onMessage = options.onMessage;
  }

  push(chunk: Buffer): void {
    let at = 0;
    while (at < chunk.length) {
      if (this.#skipBytes > 0) at = this.#skip(chunk, at);
      else if (this.#pendingBytes > 0) at = this.#complete(chunk, at);
      else at = this.#read(chunk, at);
    }
  }

  /** A message from its first byte on; answers where the chunk goes on. */
  #read(chunk: Buffer, at: number): number {
    const isHeaderCut = chunk.length - at < headerBytes;
    const length = isHeaderCut ? headerBytes : 1 + chunk.readUInt32BE(at + 1);
    if (length > this.#options.limitBytes) {
      this.#refuse(chunk[at]!, length);
      return at;
    }
    if (isHeaderCut || chunk.length - at < length) {
      this.#keep(chunk, at, chunk.length, length);
      return chunk.length;
    }
    this.#onMessage(chunk[at]!, chunk, at + headerBytes, at + length);
    return at + length;
  }

  #refuse(type: number, length: number): void {
    this.#skipBytes = length;
    this.#options.onOversize(type, length);
  }

  #skip(chunk: Buffer, at: number): number {
    const skipped = Math.min(this.#skipBytes, chunk.length - at);
    this.#skipBytes -= skipped;
    return at + skipped;
  }

  /** Moves what the pending message still lacks from the chunk; answers where the chunk goes on. */
  #complete(chunk: Buffer, at: number): number {
    const known = this.#pendingBytes >= headerBytes;
    const wanted = known ? 1 + this.#pending.readUInt32BE(1) : headerBytes;
    const end = Math.min(chunk.length, at + wanted - this.#pendingBytes);
    this.#keep(chunk, at, end, wanted);
    if (this.#pendingBytes < wanted) return end;
    const length = 1 + this.#pending.readUInt32BE(1);
    if (!known && length > this.#options.limitBytes) {
      this.#pendingBytes = 0;
      this.#refuse(this.#pending[0]!, length);
      this.#skipBytes -= headerBytes;
      return end;
    }
    if (this.#pendingBytes < length) return end;
    const bytes = this.#pending;
    this.#pendingBytes = 0;
    if (bytes.length > keptBytes) this.#pending = Buffer.allocUnsafe(0);
    this.#onMessage(bytes[0]!, bytes, headerBytes, length);
    return end;
  }

  #keep(chunk: Buffer, start: number, end: number, wanted: number): void {
    const needed = this.#pendingBytes + end - start;
    if (this.#pending.length < needed) {
      // Room for the whole message at once, but trust an announced length only so far.
      const eager = Math.min(wanted, Math.max(eagerBytes, 2 * this.#pending.length));
      const grown = Buffer.allocUnsafe(Math.max(needed, eager, 256));
      this.#pending.copy(grown, 0, 0, this.#pendingBytes);
      this.#pending = grown;
    }
    chunk.copy(this.#pending, this.#pendingBytes, start, end);
    this.#pendingBytes = needed;
  }
}
