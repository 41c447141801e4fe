import fc from 'fast-check';
import { expect, test } from 'vitest';
import { MessageReader } from './message-reader.ts';

function encode(type: number, body: Buffer): Buffer {
  const bytes = Buffer.alloc(5 + body.length);
  bytes[0] = type;
  bytes.writeInt32BE(4 + body.length, 1);
  body.copy(bytes, 5);
  return bytes;
}

const limitBytes = 1_000;
const message = fc.record({
  type: fc.integer({ min: 1, max: 127 }),
  body: fc.uint8Array({ maxLength: 2_000, size: 'max' }).map((bytes) => Buffer.from(bytes)),
});

test('messages come out whole however the stream is cut; too long ones are skipped', () => {
  fc.assert(
    fc.property(fc.array(message), fc.array(fc.integer({ min: 1, max: 700 })), (sent, cuts) => {
      const got: [number, string][] = [];
      const reader = new MessageReader({
        limitBytes,
        onMessage: (type, bytes, start, end) =>
          void got.push([type, bytes.toString('hex', start, end)]),
        onOversize: (type, length) => void got.push([type, `too long: ${length}`]),
      });
      const stream = Buffer.concat(sent.map(({ type, body }) => encode(type, body)));
      // Like a socket's, the buffer is reused for every read.
      const buffer = Buffer.alloc(Math.max(stream.length, 1));
      for (let at = 0, n = 0; at < stream.length; n++) {
        const size = Math.min(cuts[n % Math.max(1, cuts.length)] ?? 64, stream.length - at);
        stream.copy(buffer, 0, at, at + size);
        reader.push(buffer.subarray(0, size));
        buffer.fill(0xff);
        at += size;
      }
      expect(got).toEqual(
        sent.map(({ type, body }) => [
          type,
          body.length + 5 > limitBytes ? `too long: ${body.length + 5}` : body.toString('hex'),
        ]),
      );
    }),
  );
});
