// What can be uploaded, and how it is cut into pieces.

export type Content =
  | string
  | Uint8Array
  | ArrayBuffer
  | Blob
  | ReadableStream<Uint8Array>
  | AsyncIterable<Uint8Array>;

const pieceBytes = 256 * 1024;

/** The content itself if it is in memory and has less than `limit` bytes. */
export function smallContent(content: Content, limit: number): string | Uint8Array | undefined {
  if (content instanceof ArrayBuffer) return smallContent(new Uint8Array(content), limit);
  if (content instanceof Uint8Array) return content.length < limit ? content : undefined;
  // A UTF-16 unit has at most three bytes in UTF-8.
  if (typeof content === 'string') return content.length * 3 < limit ? content : undefined;
  return undefined;
}

export function contentPieces(content: Content): {
  total: number | undefined;
  pieces: AsyncIterable<Uint8Array>;
} {
  if (typeof content === 'string') return contentPieces(new TextEncoder().encode(content));
  if (content instanceof ArrayBuffer) return contentPieces(new Uint8Array(content));
  if (content instanceof Uint8Array)
    return { total: content.length, pieces: cut(oneByOne([content])) };
  if (content instanceof Blob) return { total: content.size, pieces: blobPieces(content) };
  if (Symbol.asyncIterator in content) return { total: undefined, pieces: cut(content) };
  return { total: undefined, pieces: cut(streamPieces(content)) };
}

export function toBase64(bytes: Uint8Array): string {
  let binary = '';
  for (let at = 0; at < bytes.length; at += 32_768)
    binary += String.fromCharCode(...bytes.subarray(at, at + 32_768));
  return btoa(binary);
}

export function fromBase64(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function* oneByOne(list: Uint8Array[]): AsyncGenerator<Uint8Array> {
  yield* list;
}

async function* cut(source: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  for await (const bytes of source)
    for (let at = 0; at < bytes.length; at += pieceBytes) yield bytes.subarray(at, at + pieceBytes);
}

async function* blobPieces(blob: Blob): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < blob.size; at += pieceBytes)
    yield new Uint8Array(await blob.slice(at, at + pieceBytes).arrayBuffer());
}

/** Not every browser can iterate over a stream by itself. */
export async function* streamPieces(
  stream: ReadableStream<Uint8Array>,
): AsyncGenerator<Uint8Array> {
  const reader = stream.getReader();
  try {
    for (let it = await reader.read(); !it.done; it = await reader.read()) yield it.value;
  } finally {
    reader.releaseLock();
  }
}
