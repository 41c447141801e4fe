import fc from 'fast-check';
import { expect, test } from 'vitest';
import { JsonWriter } from './json-writer.ts';

const text = fc
  .oneof(
    fc.string({ unit: 'binary', maxLength: 40 }),
    fc.string({ unit: 'binary', minLength: 500, maxLength: 3_000, size: 'max' }),
  )
  .map((value) => value.toWellFormed());

test('strings of any length and content parse back, in whatever chunks they lie', () => {
  fc.assert(
    fc.property(fc.array(text, { maxLength: 200, size: 'max' }), (values) => {
      const writer = new JsonWriter();
      writer.ascii('[');
      values.forEach((value, index) => {
        if (index > 0) writer.byte(0x2c);
        const bytes = Buffer.from(`<${value}>`);
        writer.string(bytes, 1, bytes.length - 1);
      });
      writer.ascii(']');
      const { chunks, byteLength } = writer.take();
      const whole = Buffer.concat(chunks);
      expect(whole.length).toBe(byteLength);
      expect(JSON.parse(whole.toString())).toEqual(values);
    }),
    { numRuns: 30 },
  );
});

test('released chunks are written again, and never those still in use', () => {
  const big = Buffer.alloc(900_000, 'a');
  const write = (letter: string) => {
    const writer = new JsonWriter();
    for (let n = 0; n < 5; n++) writer.raw(big.fill(letter), 0, big.length);
    return writer.take();
  };
  const kept = write('k');
  const gone = write('g');
  gone.release();
  gone.release();
  const first = write('x');
  const second = write('y');
  const letters = (chunks: readonly Buffer[]) => new Set(Buffer.concat(chunks).toString());
  expect(letters(kept.chunks)).toEqual(new Set('k'));
  expect(letters(first.chunks)).toEqual(new Set('x'));
  expect(letters(second.chunks)).toEqual(new Set('y'));
});
