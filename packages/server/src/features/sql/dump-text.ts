// What becomes of pg_dump's text: its psql commands go, the roles it mentions come first, its
// objects are counted.
import { quoteIdent, quoteLiteral } from '../../kernel/sql-quote.ts';

export interface DumpJob {
  args: string[];
  /** Between pg_dump's `\restrict` and `\unrestrict`. */
  restrictKey: string;
  /** Roles that grants and policies name and a new database lacks. */
  roles: string[];
  limitBytes: number;
}

export const dumpExit = { failed: 1, tooLarge: 3 } as const;

const header = /^-- Name: .*; Type: ([A-Z ]+); Schema: /;
/** Entries that hold data, not an object. */
const dataTypes = new Set([
  'TABLE DATA',
  'SEQUENCE SET',
  'MATERIALIZED VIEW DATA',
  'BLOBS',
  'STATISTICS DATA',
]);

/** The HTTP answer's JSON, in pieces. */
export function* renderDump(dump: Buffer, { restrictKey, roles }: DumpJob): Generator<string> {
  yield '{"sql":"';
  let count = 0;
  yield escaped(roles.map(createRole).join(''));
  for (const piece of pieces(dump.toString('utf8'))) {
    if (piece.startsWith('--')) {
      const type = header.exec(piece)?.[1];
      if (type !== undefined && !dataTypes.has(type)) count++;
    }
    const text = piece
      .replace(`\\restrict ${restrictKey}\n`, '')
      .replace(`\\unrestrict ${restrictKey}\n`, '');
    yield escaped(text);
  }
  yield `","object_count":${count}}`;
}

function createRole(name: string): string {
  return `DO $coppice$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = ${quoteLiteral(name)}) THEN
    CREATE ROLE ${quoteIdent(name)};
  END IF;
END $coppice$;

`;
}

const escaped = (text: string) => JSON.stringify(text).slice(1, -1);

const boundary = /'|"|\$(?:[A-Za-z_][A-Za-z0-9_]*)?\$|^--.*$/gm;

/** The text cut into comment lines and what lies between, quoted text never cut. */
function* pieces(text: string): Generator<string> {
  let start = 0;
  let at = 0;
  while (at < text.length) {
    boundary.lastIndex = at;
    const match = boundary.exec(text);
    if (!match) break;
    const found = match[0];
    at = match.index + found.length;
    if (found.startsWith('--')) {
      if (match.index > start) yield text.slice(start, match.index);
      yield found;
      start = at;
    } else {
      // '' and "" within quotes end it and begin it anew, which comes to the same.
      const close = text.indexOf(found, at);
      at = close < 0 ? text.length : close + found.length;
    }
  }
  if (start < text.length) yield text.slice(start);
}
