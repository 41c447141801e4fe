// Binary frames: 8 bytes of stream id, big-endian, then content.

const headerBytes = 8;

export function encodeFrame(stream: number, bytes: Buffer): Buffer {
  const frame = Buffer.allocUnsafe(headerBytes + bytes.length);
  frame.writeBigUInt64BE(BigInt(stream));
  bytes.copy(frame, headerBytes);
  return frame;
}

/** Undefined if it is too short, or names a stream that can never have been. */
export function decodeFrame(frame: Buffer): { stream: number; bytes: Buffer } | undefined {
  if (frame.length < headerBytes) return undefined;
  const stream = frame.readBigUInt64BE();
  if (stream > BigInt(Number.MAX_SAFE_INTEGER)) return undefined;
  return { stream: Number(stream), bytes: frame.subarray(headerBytes) };
}
