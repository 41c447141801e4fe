// A value in Postgres's text form written as `to_json` writes it. What to do is decided once a
// column, from its type (see types.ts); the text of arrays and records is taken apart here.
//
// https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
// https://www.postgresql.org/docs/current/rowtypes.html#ROWTYPES-IO-SYNTAX
import type { JsonWriter } from './json-writer.ts';

export type Shape =
  | { kind: 'text' | 'number' | 'boolean' | 'json' | 'timestamp' | 'timestamptz' }
  | { kind: 'array'; element: Shape; delimiter: number }
  /** int2vector and oidvector: space-separated. */
  | { kind: 'vector'; element: Shape }
  | { kind: 'record'; fields: readonly { key: Buffer; shape: Shape }[] }
  /** A type with a cast to json of its own: only the server can apply it. */
  | { kind: 'cast'; typeOid: number };

/** Writes a value of a type with a cast to json. */
export type WriteCast = (typeOid: number, text: Buffer) => void;

const zero = 0x30;
const nine = 0x39;
const minus = 0x2d;
const plus = 0x2b;
const comma = 0x2c;
const space = 0x20;
const quote = 0x22;
const backslash = 0x5c;
const colon = 0x3a;

export function writeValue(
  out: JsonWriter,
  shape: Shape,
  bytes: Buffer,
  start: number,
  end: number,
  writeCast: WriteCast,
): void {
  switch (shape.kind) {
    case 'number':
      // NaN and the infinities are no JSON numbers.
      if (isDigit(bytes[start]!) || (bytes[start] === minus && isDigit(bytes[start + 1]!)))
        out.raw(bytes, start, end);
      else out.string(bytes, start, end);
      break;
    case 'text':
      out.string(bytes, start, end);
      break;
    case 'boolean':
      out.ascii(bytes[start] === 0x74 ? 'true' : 'false');
      break;
    case 'json':
      out.raw(bytes, start, end);
      break;
    case 'timestamp':
    case 'timestamptz':
      writeTimestamp(out, shape.kind === 'timestamptz', bytes, start, end);
      break;
    case 'array':
      writeArray(out, shape, bytes, start, end, writeCast);
      break;
    case 'vector':
      writeVector(out, shape.element, bytes, start, end, writeCast);
      break;
    case 'record':
      writeRecord(out, shape.fields, bytes, start, end, writeCast);
      break;
    case 'cast':
      writeCast(shape.typeOid, Buffer.from(bytes.subarray(start, end)));
      break;
  }
}

/** `2020-01-01 00:00:00+00` → `2020-01-01T00:00:00+00:00`; anything else (infinity) as it is. */
function writeTimestamp(
  out: JsonWriter,
  withZone: boolean,
  bytes: Buffer,
  start: number,
  end: number,
): void {
  const gap = bytes.indexOf(space, start);
  if (gap < 0 || gap >= end || !isDigit(bytes[start]!) || bytes[gap - 3] !== minus) {
    out.string(bytes, start, end);
    return;
  }
  out.byte(quote);
  out.raw(bytes, start, gap);
  out.byte(0x54); // T
  if (!withZone) out.raw(bytes, gap + 1, end);
  else {
    let sign = gap + 1;
    while (sign < end && bytes[sign] !== plus && bytes[sign] !== minus) sign++;
    const hours = Math.min(sign + 3, end);
    out.raw(bytes, gap + 1, hours);
    if (bytes[hours] !== colon || hours === end) out.ascii(':00');
    out.raw(bytes, hours, end);
  }
  out.byte(quote);
}

function writeArray(
  out: JsonWriter,
  { element, delimiter }: Extract<Shape, { kind: 'array' }>,
  bytes: Buffer,
  start: number,
  end: number,
  writeCast: WriteCast,
): void {
  // Bounds other than 1 are announced in front: [0:1]={a,b}
  let at = bytes[start] === 0x5b ? bytes.indexOf(0x3d, start) + 1 : start;
  while (at < end) {
    const byte = bytes[at]!;
    if (byte === 0x7b || byte === 0x7d) {
      out.byte(byte === 0x7b ? 0x5b : 0x5d);
      at++;
    } else if (byte === delimiter) {
      out.byte(comma);
      at++;
    } else if (byte === quote) {
      const close = closingQuote(bytes, at + 1, end);
      const text = unescaped(bytes, at + 1, close);
      writeValue(out, element, text, 0, text.length, writeCast);
      at = close + 1;
    } else {
      let stop = at;
      while (stop < end && bytes[stop] !== delimiter && bytes[stop] !== 0x7d) stop++;
      if (isNull(bytes, at, stop)) out.ascii('null');
      else writeValue(out, element, bytes, at, stop, writeCast);
      at = stop;
    }
  }
}

function writeVector(
  out: JsonWriter,
  element: Shape,
  bytes: Buffer,
  start: number,
  end: number,
  writeCast: WriteCast,
): void {
  out.byte(0x5b);
  let at = start;
  while (at < end) {
    let stop = bytes.indexOf(space, at);
    if (stop < 0 || stop > end) stop = end;
    if (at > start) out.byte(comma);
    writeValue(out, element, bytes, at, stop, writeCast);
    at = stop + 1;
  }
  out.byte(0x5d);
}

function writeRecord(
  out: JsonWriter,
  fields: readonly { key: Buffer; shape: Shape }[],
  bytes: Buffer,
  start: number,
  end: number,
  writeCast: WriteCast,
): void {
  out.byte(0x7b);
  let at = start + 1; // after the parenthesis
  fields.forEach(({ key, shape }, index) => {
    if (index > 0) out.byte(comma);
    out.raw(key, 0, key.length);
    out.byte(colon);
    if (bytes[at] === quote) {
      const close = closingQuote(bytes, at + 1, end);
      const text = unescaped(bytes, at + 1, close);
      writeValue(out, shape, text, 0, text.length, writeCast);
      at = close + 2;
    } else {
      let stop = at;
      while (stop < end - 1 && bytes[stop] !== comma) stop++;
      if (stop === at) out.ascii('null');
      else writeValue(out, shape, bytes, at, stop, writeCast);
      at = stop + 1;
    }
  });
  out.byte(0x7d);
}

/** Index of the quote that ends the text begun at `start`; `\x` and `""` do not end it. */
function closingQuote(bytes: Buffer, start: number, end: number): number {
  for (let at = start; at < end; at++) {
    if (bytes[at] === backslash) at++;
    else if (bytes[at] === quote) {
      if (bytes[at + 1] !== quote || at + 1 >= end) return at;
      at++;
    }
  }
  return end;
}

function unescaped(bytes: Buffer, start: number, end: number): Buffer {
  const inner = bytes.subarray(start, end);
  if (!inner.includes(backslash) && !inner.includes(quote)) return inner;
  const text = Buffer.allocUnsafe(inner.length);
  let length = 0;
  for (let at = 0; at < inner.length; at++) {
    if (inner[at] === backslash || inner[at] === quote) at++;
    text[length++] = inner[at]!;
  }
  return text.subarray(0, length);
}

function isNull(bytes: Buffer, start: number, end: number): boolean {
  return (
    end - start === 4 &&
    bytes[start] === 0x4e &&
    bytes[start + 1] === 0x55 &&
    bytes[start + 2] === 0x4c &&
    bytes[start + 3] === 0x4c
  );
}

function isDigit(byte: number): boolean {
  return byte >= zero && byte <= nine;
}
