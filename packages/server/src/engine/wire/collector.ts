// Takes what a session answers to a customer's SQL and keeps the last statement's result as JSON
// text. Rows go from the wire's bytes to JSON's bytes as they arrive. Where a column's type has to
// be looked up first, they are kept as they came and written once it is known.
import type { Backend, Exchange, TransactionStatus } from './backend.ts';
import { type JsonText, JsonWriter } from './json-writer.ts';
import { copyFail, sync, backend as type } from './messages.ts';
import { readError, type ServerError } from './server-error.ts';
import { type BuiltinTypes, builtinType, type ColumnType, isOpaque, lookUpTypes } from './types.ts';
import { type Shape, type WriteCast, writeValue } from './values.ts';

export interface Column {
  name: Buffer;
  oid: number;
  modifier: number;
}

export type Refusal = 'copy' | 'too_large';

const noCasts: WriteCast = () => {
  throw new Error('a cast was not expected here');
};
const rowOverheadBytes = 64;

export class Collector implements Exchange {
  error: ServerError | undefined;
  /** Why we stopped it ourselves. */
  refusal: Refusal | undefined;
  /** No statement in the text at all. */
  isEmpty = false;
  /** Command tags of all statements, without counts. */
  readonly tags: string[] = [];
  readonly done: Promise<void>;

  readonly #backend: Backend;
  readonly #builtins: BuiltinTypes;
  readonly #limitBytes: number;
  readonly #isExtended: boolean;
  readonly #onStatement: () => void;
  readonly #wrappedColumns: Column[] | undefined;
  #resolve!: () => void;
  #reject!: (error: Error) => void;

  #out = new JsonWriter();
  #columns: Column[] = [];
  /** Shapes of the columns, or undefined while they must be looked up. */
  #shapes: Shape[] | undefined = [];
  #types: ColumnType[] = [];
  /** A description came since the last statement ended. */
  #isDescribed = false;
  #hasRows = false;
  #received = 0;
  #written = 0;
  #rowCount = 0;
  #tag = '';
  #kept: Buffer[] = [];
  #keptBytes = 0;

  constructor(options: {
    backend: Backend;
    builtins: BuiltinTypes;
    limitBytes: number;
    /** Extended protocol: a sync is needed after a refused COPY. */
    isExtended: boolean;
    /** A statement ended, more may follow. */
    onStatement: () => void;
    /** The columns as they were before the opaque ones were wrapped in `to_json`. */
    wrappedColumns?: Column[];
  }) {
    this.#backend = options.backend;
    this.#builtins = options.builtins;
    this.#limitBytes = options.limitBytes;
    this.#isExtended = options.isExtended;
    this.#onStatement = options.onStatement;
    this.#wrappedColumns = options.wrappedColumns;
    this.done = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  message(kind: number, bytes: Buffer, start: number, end: number): void {
    switch (kind) {
      case type.dataRow:
        if (!this.refusal) this.#row(bytes, start, end);
        return;
      case type.rowDescription:
        this.#describe(this.#wrappedColumns ?? readColumns(bytes, start));
        return;
      case type.commandComplete:
        this.#complete(bytes.toString('latin1', start, end - 1));
        return;
      case type.emptyQueryResponse:
        this.isEmpty = true;
        return;
      case type.errorResponse:
        this.error ??= readError(bytes, start, end);
        return;
      case type.copyInResponse:
        this.refusal ??= 'copy';
        this.#backend.send(copyFail('COPY FROM STDIN cannot be used here'));
        // The sync that was sent with the statement went down as copy data.
        if (this.#isExtended) this.#backend.send(sync);
        return;
      case type.copyOutResponse:
      case type.copyBothResponse:
        this.#refuse('copy');
    }
  }

  oversize(): void {
    this.#refuse('too_large');
  }

  ready(_status: TransactionStatus): void {
    this.#resolve();
  }

  lost(error: Error): void {
    this.#reject(error);
  }

  /** The answer's JSON. Looks up types in the session where it must, so call it before cleaning. */
  async finish(): Promise<JsonText> {
    const out = this.#out;
    if (this.#hasRows) {
      if (!this.#shapes) await this.#writeKept();
    } else {
      out.reset();
      out.ascii('{"columns":[],"rows":[');
    }
    out.ascii('],"row_count":');
    out.ascii(String(this.#rowCount));
    out.ascii(',"command":');
    out.text(this.#tag);
    out.byte(0x7d);
    return out.take();
  }

  #describe(columns: Column[]): void {
    this.#columns = columns;
    this.#isDescribed = true;
    this.#forget();
    this.#types = [];
    for (const column of columns) {
      const known = this.#knownType(column);
      if (!known) {
        this.#shapes = undefined;
        return;
      }
      this.#types.push(known);
    }
    this.#shapes = this.#types.map((known) => known.shape);
    this.#writeHeader();
  }

  #knownType({ oid, modifier }: Column): ColumnType | undefined {
    const known = builtinType(this.#builtins, oid, modifier);
    return known && this.#wrappedColumns && isOpaque(oid)
      ? { name: known.name, shape: { kind: 'json' } }
      : known;
  }

  #forget(): void {
    this.#out.reset();
    this.#kept = [];
    this.#keptBytes = 0;
    this.#received = 0;
    this.#written = 0;
  }

  #writeHeader(): void {
    const out = this.#out;
    out.ascii('{"columns":[');
    this.#columns.forEach(({ name }, index) => {
      out.ascii(index > 0 ? ',{"name":' : '{"name":');
      out.string(name, 0, name.length);
      out.ascii(',"data_type":');
      out.text(this.#types[index]!.name);
      out.byte(0x7d);
    });
    out.ascii('],"rows":[');
  }

  #row(bytes: Buffer, start: number, end: number): void {
    this.#received++;
    if (this.#shapes) {
      this.#writeRow(bytes, start, this.#shapes, noCasts);
      if (this.#out.byteLength > this.#limitBytes) this.#refuse('too_large');
      return;
    }
    this.#kept.push(Buffer.from(bytes.subarray(start, end)));
    this.#keptBytes += end - start + rowOverheadBytes;
    if (this.#keptBytes > this.#limitBytes) this.#refuse('too_large');
  }

  #writeRow(bytes: Buffer, start: number, shapes: readonly Shape[], writeCast: WriteCast): void {
    const out = this.#out;
    if (this.#written++ > 0) out.byte(0x2c);
    out.byte(0x5b);
    let at = start + 2;
    for (let index = 0; index < shapes.length; index++) {
      if (index > 0) out.byte(0x2c);
      const length =
        (bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!;
      at += 4;
      if (length < 0) out.ascii('null');
      else {
        writeValue(out, shapes[index]!, bytes, at, at + length, writeCast);
        at += length;
      }
    }
    out.byte(0x5d);
  }

  #complete(tag: string): void {
    // "SELECT 1", "INSERT 0 1", "CREATE TABLE"
    const counted = /^(.*?)(?: \d+)? (\d+)$/.exec(tag);
    this.#tag = counted ? counted[1]! : tag;
    this.tags.push(this.#tag);
    this.#hasRows = this.#isDescribed;
    this.#isDescribed = false;
    if (!this.#hasRows) this.#forget();
    // EXPLAIN and SHOW return rows that their tag does not count.
    this.#rowCount = counted ? Number(counted[2]) : this.#received;
    this.#onStatement();
  }

  #refuse(reason: Refusal): void {
    if (this.refusal) return;
    this.refusal = reason;
    this.#forget();
    this.#backend.cancel();
  }

  async #writeKept(): Promise<void> {
    const ask = (sql: string) => this.#backend.ask(sql);
    const found = await lookUpTypes(ask, this.#builtins, this.#columns);
    this.#types = this.#columns.map((column, index) => this.#knownType(column) ?? found[index]!);
    const shapes = this.#types.map(({ shape }) => shape);
    const casts = await this.#applyCasts(shapes);
    this.#out.reset();
    this.#writeHeader();
    this.#written = 0;
    let next = 0;
    const kept = this.#kept;
    this.#kept = [];
    for (const row of kept) {
      this.#writeRow(row, 0, shapes, () => {
        const json = Buffer.from(casts[next++] ?? 'null');
        this.#out.raw(json, 0, json.length);
      });
      if (this.#out.byteLength > this.#limitBytes) {
        this.refusal = 'too_large';
        return;
      }
    }
    this.#shapes = shapes;
  }

  /** JSON of every value whose type has a cast to json, in the order they are written. */
  async #applyCasts(shapes: readonly Shape[]): Promise<string[]> {
    if (!shapes.some(holdsCast)) return [];
    const values: { typeOid: number; text: string }[] = [];
    const collect: WriteCast = (typeOid, text) => {
      values.push({ typeOid, text: text.toString() });
    };
    for (const row of this.#kept) {
      this.#out.reset();
      this.#writeRow(row, 0, shapes, collect);
    }
    const json: string[] = [];
    for (const typeOid of new Set(values.map((value) => value.typeOid))) {
      const mine = values.flatMap((value, index) => (value.typeOid === typeOid ? [index] : []));
      const texts = mine.map((index) => values[index]!.text);
      const [[name] = []] = await this.#backend.ask(
        `select pg_catalog.format('%I.%I', n.nspname, t.typname)
           from pg_catalog.pg_type t join pg_catalog.pg_namespace n on n.oid = t.typnamespace
          where t.oid = ${typeOid}`,
      );
      const rows = await this.#backend.ask(
        `select pg_catalog.to_json(v::${name}) from pg_catalog.unnest(${arrayLiteral(texts)}::text[])
           with ordinality u(v, n) order by n`,
      );
      rows.forEach(([text], index) => {
        json[mine[index]!] = text ?? 'null';
      });
    }
    return json;
  }
}

function holdsCast(shape: Shape): boolean {
  switch (shape.kind) {
    case 'cast':
      return true;
    case 'array':
    case 'vector':
      return holdsCast(shape.element);
    case 'record':
      return shape.fields.some((field) => holdsCast(field.shape));
    default:
      return false;
  }
}

/** A text array as an escape-string literal: right whatever standard_conforming_strings says. */
function arrayLiteral(texts: readonly string[]): string {
  const elements = texts.map((text) => `"${text.replace(/["\\]/g, '\\$&')}"`);
  const array = `{${elements.join(',')}}`;
  return `E'${array.replaceAll('\\', '\\\\').replaceAll("'", "''")}'`;
}

export function readColumns(bytes: Buffer, start: number): Column[] {
  const columns: Column[] = [];
  let at = start + 2;
  for (let left = bytes.readInt16BE(start); left > 0; left--) {
    const stop = bytes.indexOf(0, at);
    columns.push({
      name: Buffer.from(bytes.subarray(at, stop)),
      oid: bytes.readUInt32BE(stop + 7),
      modifier: bytes.readInt32BE(stop + 13),
    });
    at = stop + 19;
  }
  return columns;
}
