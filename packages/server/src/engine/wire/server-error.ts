// What Postgres says went wrong: https://www.postgresql.org/docs/current/protocol-error-fields.html

export class ServerError extends Error {
  readonly severity: string;
  /** SQLSTATE. */
  readonly code: string;
  readonly detail: string | undefined;
  readonly hint: string | undefined;
  /** One-based character in the statement's text. */
  readonly position: number | undefined;
  /** Where in functions it happened, and the text of the statement there. */
  readonly context: string | undefined;
  readonly internalQuery: string | undefined;
  readonly internalPosition: number | undefined;

  constructor(fields: ReadonlyMap<string, string>) {
    super(fields.get('M') ?? 'unknown error');
    this.name = 'ServerError';
    this.severity = fields.get('V') ?? fields.get('S') ?? 'ERROR';
    this.code = fields.get('C') ?? 'XX000';
    this.detail = fields.get('D');
    this.hint = fields.get('H');
    this.position = integer(fields.get('P'));
    this.context = fields.get('W');
    this.internalQuery = fields.get('q');
    this.internalPosition = integer(fields.get('p'));
  }

  /** The session is over, not just the statement. */
  get isFatal(): boolean {
    return this.severity === 'FATAL' || this.severity === 'PANIC';
  }

  /**
   * The error as psql prints it, without its `ERROR:`. `text` is what the customer sent, `offset`
   * where in it the statement starts that was sent alone.
   */
  render(text: string, offset = 0): string {
    const lines = [this.message];
    if (this.position !== undefined) lines.push(...pointAt(text, this.position, offset));
    else if (this.internalQuery !== undefined && this.internalPosition !== undefined)
      lines.push(...pointAt(this.internalQuery, this.internalPosition));
    if (this.detail) lines.push(`DETAIL:  ${this.detail}`);
    if (this.hint) lines.push(`HINT:  ${this.hint}`);
    if (this.context) lines.push(`CONTEXT:  ${this.context}`);
    return lines.join('\n');
  }
}

/** Fields of an ErrorResponse or NoticeResponse. */
export function readError(bytes: Buffer, start: number, end: number): ServerError {
  const fields = new Map<string, string>();
  let at = start;
  while (at < end && bytes[at] !== 0) {
    const name = String.fromCharCode(bytes[at]!);
    const stop = bytes.indexOf(0, at + 1);
    if (stop < 0 || stop >= end) break;
    fields.set(name, bytes.toString('utf8', at + 1, stop));
    at = stop + 1;
  }
  return new ServerError(fields);
}

const shownBefore = 40;
const shownAfter = 60;

/** `LINE 2: select * form t` and a caret under the place, long lines cut around it. */
function pointAt(text: string, position: number, offset = 0): string[] {
  const index = codeUnitOf(text, position, offset);
  if (index === undefined) return [];
  const before = text.slice(0, index);
  const lineNumber = (before.match(/\r\n|\n|\r/g)?.length ?? 0) + 1;
  const lineStart = Math.max(before.lastIndexOf('\n'), before.lastIndexOf('\r')) + 1;
  const rest = text.slice(index).search(/[\r\n]/);
  const lineEnd = rest < 0 ? text.length : index + rest;
  const from = Math.max(lineStart, index - shownBefore);
  const to = Math.min(lineEnd, index + shownAfter);
  const prefix = `LINE ${lineNumber}: ${from > lineStart ? '...' : ''}`;
  const shown = text.slice(from, to).toWellFormed().replaceAll('\t', ' ');
  return [
    `${prefix}${shown}${to < lineEnd ? '...' : ''}`,
    `${' '.repeat(prefix.length + index - from)}^`,
  ];
}

/** Postgres counts characters, JavaScript counts UTF-16 units. */
function codeUnitOf(text: string, position: number, offset: number): number | undefined {
  let index = offset;
  for (let character = 1; character < position; character++) {
    if (index >= text.length) return undefined;
    index += text.codePointAt(index)! > 0xffff ? 2 : 1;
  }
  return index;
}

function integer(text: string | undefined): number | undefined {
  return text === undefined ? undefined : Number.parseInt(text, 10);
}
