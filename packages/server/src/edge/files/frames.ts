// Binary frames: 8 bytes of stream id, big-endian, then content.

const headerBytes = 8;

/** A frame to fill, send and fill again: the same memory serves a whole stream. */
export interface Frame {
  /** Takes what has room of `source` from `at` on; gives the number of bytes. */
  fill(source: Buffer, at: number): number;
  clear(): void;
  readonly full: boolean;
  readonly bytes: Buffer;
  readonly content: Buffer;
}

export function createFrame(stream: number, contentBytes: number): Frame {
  const memory = Buffer.allocUnsafeSlow(headerBytes + contentBytes);
  memory.writeBigUInt64BE(BigInt(stream));
  let end = headerBytes;
  return {
    fill(source, at) {
      const count = source.copy(memory, end, at);
      end += count;
      return count;
    },
    clear() {
      end = headerBytes;
    },
    get full() {
      return end === memory.length;
    },
    get bytes() {
      return memory.subarray(0, end);
    },
    get content() {
      return memory.subarray(headerBytes, end);
    },
  };
}

/** Undefined if it is too short, or names a stream that can never have been. */
export function decodeFrame(frame: Buffer): { stream: number; bytes: Buffer } | undefined {
  if (frame.length < headerBytes) return undefined;
  const stream = frame.readBigUInt64BE();
  if (stream > BigInt(Number.MAX_SAFE_INTEGER)) return undefined;
  return { stream: Number(stream), bytes: frame.subarray(headerBytes) };
}
