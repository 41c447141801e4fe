// Messages between the service and a sandbox over its stdin and stdout:
// length of the JSON (4 bytes, big-endian) ‖ length of the tail (4) ‖ JSON ‖ tail (raw bytes).
// What comes out of a sandbox is the tenant's word: every length is bounded before it is believed.

export interface Frame {
  message: Record<string, unknown>;
  tail: Buffer;
}

export const maxMessageBytes = 8 * 1024 * 1024;
export const maxTailBytes = 32 * 1024 * 1024;
const headerBytes = 8;

export function encodeFrame(message: object, tail: Uint8Array = Buffer.alloc(0)): Buffer {
  const json = Buffer.from(JSON.stringify(message));
  const header = Buffer.alloc(headerBytes);
  header.writeUInt32BE(json.length, 0);
  header.writeUInt32BE(tail.length, 4);
  return Buffer.concat([header, json, tail]);
}

/** Takes bytes as they arrive and gives whole frames. Throws on anything that is not one. */
export function createFrameReader(): (chunk: Buffer) => Frame[] {
  let pending: Buffer[] = [];
  let pendingBytes = 0;
  let wantedBytes = headerBytes;

  return (chunk) => {
    pending.push(chunk);
    pendingBytes += chunk.length;
    const frames: Frame[] = [];
    while (pendingBytes >= wantedBytes) {
      const bytes = pending.length === 1 ? pending[0]! : Buffer.concat(pending);
      const jsonBytes = bytes.readUInt32BE(0);
      const tailBytes = bytes.readUInt32BE(4);
      if (jsonBytes > maxMessageBytes || tailBytes > maxTailBytes)
        throw new Error('a frame is larger than allowed');
      const end = headerBytes + jsonBytes + tailBytes;
      pending = [bytes];
      if (bytes.length < end) {
        wantedBytes = end;
        return frames;
      }
      const message: unknown = JSON.parse(
        bytes.toString('utf8', headerBytes, headerBytes + jsonBytes),
      );
      if (typeof message !== 'object' || message === null || Array.isArray(message))
        throw new Error('a frame does not hold an object');
      frames.push({
        message: message as Record<string, unknown>,
        tail: bytes.subarray(headerBytes + jsonBytes, end),
      });
      pending = [bytes.subarray(end)];
      pendingBytes = bytes.length - end;
      wantedBytes = headerBytes;
    }
    return frames;
  };
}
