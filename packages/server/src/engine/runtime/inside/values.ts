// Values of the database on their way into and out of a sandbox: what JSON has no form for is marked.

const { stringify } = JSON;
const { defineProperty } = Object;
const DateOf = Date;
const isNotANumber = Number.isNaN;

export interface WireResult {
  columns: { name: string; kind: string }[];
  rows: unknown[][];
  rowCount: number;
  command: string;
}

/** Rows as objects; what JSON has no form for comes marked by its column. */
export function toResult(wire: WireResult) {
  const rows: Record<string, unknown>[] = [];
  for (let r = 0; r < wire.rows.length; r++) {
    const row: Record<string, unknown> = {};
    for (let c = 0; c < wire.columns.length; c++) {
      const { name, kind } = wire.columns[c]!;
      let value = wire.rows[r]![c];
      if (typeof value === 'string' && kind === 'date') value = toDate(value);
      if (typeof value === 'string' && kind === 'bytes') value = fromHex(value);
      defineProperty(row, name, { value, enumerable: true, configurable: true, writable: true });
    }
    rows[r] = row;
  }
  return { rows, rowCount: wire.rowCount, command: wire.command };
}

/** `infinity` and years that Date does not reach stay text. */
function toDate(text: string): Date | string {
  const date = new DateOf(text);
  return isNotANumber(date.getTime()) ? text : date;
}

function fromHex(hex: string): Uint8Array {
  const bytes = new Uint8Array(hex.length / 2);
  for (let i = 0; i < bytes.length; i++)
    bytes[i] = Number.parseInt(hex.slice(2 * i, 2 * i + 2), 16);
  return bytes;
}

export function toParameter(value: unknown): unknown {
  if (value instanceof Uint8Array) {
    let hex = '';
    for (const byte of value) hex += byte.toString(16).padStart(2, '0');
    return { bytes: hex };
  }
  if (value instanceof DateOf) return { text: value.toISOString() };
  if (typeof value === 'bigint') return { text: value.toString() };
  if (Array.isArray(value)) return { array: value.map(toParameter) };
  if (typeof value === 'object' && value !== null) return { text: stringify(value) };
  return value === undefined ? null : value;
}
