// JSON text written straight as bytes into chunks that grow with the answer. Strings come as the
// UTF-8 bytes Postgres sent and leave escaped as `to_json` escapes them; nothing becomes a
// JavaScript string on the way.

/** Chunks of the full size that can be written again: a large answer then costs no new memory. */
const spareChunks: Buffer[] = [];
const spareLimit = 32;

const firstChunkBytes = 2 * 1024;
const secondChunkBytes = 64 * 1024;
const chunkBytes = 1024 * 1024;
/** Up to this length a string gets room for its worst case (six bytes a byte) and one pass. */
const shortBytes = 512;

const quote = 0x22;
const backslash = 0x5c;

/** Byte → the letter after the backslash, 1 for `\u00XX`, 0 for itself. */
const escapes = new Uint8Array(256);
escapes.fill(1, 0, 0x20);
for (const [byte, letter] of ['\bb', '\ff', '\nn', '\rr', '\tt', '""', '\\\\'].map((pair) => [
  pair.charCodeAt(0),
  pair.charCodeAt(1),
]))
  escapes[byte!] = letter!;
const hex = Buffer.from('0123456789abcdef');

export class JsonWriter {
  #chunks: Buffer[] = [];
  #fullBytes = 0;
  #chunk: Buffer = Buffer.allocUnsafe(firstChunkBytes);
  #at = 0;

  get byteLength(): number {
    return this.#fullBytes + this.#at;
  }

  /** Forgets everything written. */
  reset(): void {
    giveBack(this.#chunks);
    this.#chunks = [];
    this.#fullBytes = 0;
    this.#at = 0;
  }

  /** The text written so far. The writer must not be used again. */
  take(): JsonText {
    const chunks = [...this.#chunks, this.#chunk.subarray(0, this.#at)];
    return new JsonText(chunks, this.byteLength);
  }

  byte(value: number): void {
    if (this.#at === this.#chunk.length) this.#grow(1);
    this.#chunk[this.#at++] = value;
  }

  /** ASCII that needs no escaping. */
  ascii(text: string): void {
    this.#reserve(text.length);
    const chunk = this.#chunk;
    let at = this.#at;
    for (let index = 0; index < text.length; index++) chunk[at++] = text.charCodeAt(index);
    this.#at = at;
  }

  /** Bytes as they are: JSON already, or a number. */
  raw(bytes: Buffer, start: number, end: number): void {
    const length = end - start;
    this.#reserve(length);
    const chunk = this.#chunk;
    if (length > 48) {
      bytes.copy(chunk, this.#at, start, end);
      this.#at += length;
      return;
    }
    let at = this.#at;
    for (let index = start; index < end; index++) chunk[at++] = bytes[index]!;
    this.#at = at;
  }

  string(bytes: Buffer, start: number, end: number): void {
    if (end - start > shortBytes) {
      this.#longString(bytes, start, end);
      return;
    }
    this.#reserve(6 * (end - start) + 2);
    const chunk = this.#chunk;
    let at = this.#at;
    chunk[at++] = quote;
    for (let index = start; index < end; index++) {
      const byte = bytes[index]!;
      const mark = escapes[byte]!;
      if (mark === 0) chunk[at++] = byte;
      else at = writeEscape(chunk, at, byte, mark);
    }
    chunk[at++] = quote;
    this.#at = at;
  }

  text(value: string): void {
    const bytes = Buffer.from(value);
    this.string(bytes, 0, bytes.length);
  }

  /** Runs without anything to mark are copied whole. */
  #longString(bytes: Buffer, start: number, end: number): void {
    this.byte(quote);
    let run = start;
    for (let index = start; index < end; index++) {
      const byte = bytes[index]!;
      const mark = escapes[byte]!;
      if (mark === 0) continue;
      this.raw(bytes, run, index);
      this.#reserve(6);
      this.#at = writeEscape(this.#chunk, this.#at, byte, mark);
      run = index + 1;
    }
    this.raw(bytes, run, end);
    this.byte(quote);
  }

  #reserve(bytes: number): void {
    if (this.#chunk.length - this.#at < bytes) this.#grow(bytes);
  }

  #grow(bytes: number): void {
    if (this.#at > 0) this.#chunks.push(this.#chunk.subarray(0, this.#at));
    this.#fullBytes += this.#at;
    const size =
      this.#chunk.length < secondChunkBytes && this.#fullBytes < secondChunkBytes
        ? secondChunkBytes
        : chunkBytes;
    this.#chunk =
      (size === chunkBytes && bytes <= chunkBytes ? spareChunks.pop() : undefined) ??
      Buffer.allocUnsafe(Math.max(bytes, size));
    this.#at = 0;
  }
}

/** Finished JSON, in pieces. */
export class JsonText {
  readonly chunks: readonly Buffer[];
  readonly byteLength: number;
  #isReleased = false;

  constructor(chunks: readonly Buffer[], byteLength: number) {
    this.chunks = chunks;
    this.byteLength = byteLength;
  }

  /** Nobody reads the chunks any more: they may hold other text from now on. */
  release(): void {
    if (!this.#isReleased) giveBack(this.chunks);
    this.#isReleased = true;
  }
}

function giveBack(chunks: readonly Buffer[]): void {
  for (const { buffer, byteLength } of chunks)
    if (byteLength > 0 && buffer.byteLength === chunkBytes && spareChunks.length < spareLimit)
      spareChunks.push(Buffer.from(buffer, 0, chunkBytes));
}

function writeEscape(chunk: Buffer, start: number, byte: number, mark: number): number {
  let at = start;
  chunk[at++] = backslash;
  if (mark !== 1) {
    chunk[at++] = mark;
    return at;
  }
  chunk[at++] = 0x75; // u
  chunk[at++] = 0x30;
  chunk[at++] = 0x30;
  chunk[at++] = hex[byte >> 4]!;
  chunk[at++] = hex[byte & 15]!;
  return at;
}
