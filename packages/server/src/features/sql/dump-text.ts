// What becomes of pg_dump's text: its psql commands go, what a new database must know first comes in
// front, its objects are counted.
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

/**
 * A new database lets `anon` and `authenticated` in by default (schema/database/0001-roles.sql). The
 * dump says itself who may what, so the defaults step back until its end, where it restores them.
 */
const clearDefaults = `DO $coppice$
DECLARE role_name text;
BEGIN
  FOR role_name IN SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated') LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON SCHEMA public FROM %I', role_name);
    EXECUTE pg_catalog.format('ALTER DEFAULT PRIVILEGES IN SCHEMA public REVOKE ALL ON TABLES FROM %I', role_name);
    EXECUTE pg_catalog.format('ALTER DEFAULT PRIVILEGES IN SCHEMA public REVOKE ALL ON SEQUENCES FROM %I', role_name);
  END LOOP;
END $coppice$;

`;

/** The entries that those defaults make in every dump: not the customer's objects. */
const ownEntries = new Set([
  `GRANT USAGE ON SCHEMA public TO anon;
GRANT USAGE ON SCHEMA public TO authenticated;`,
  `ALTER DEFAULT PRIVILEGES FOR ROLE admin IN SCHEMA public GRANT SELECT,USAGE ON SEQUENCES TO anon;
ALTER DEFAULT PRIVILEGES FOR ROLE admin IN SCHEMA public GRANT SELECT,USAGE ON SEQUENCES TO authenticated;`,
  `ALTER DEFAULT PRIVILEGES FOR ROLE admin IN SCHEMA public GRANT SELECT,INSERT,DELETE,UPDATE ON TABLES TO anon;
ALTER DEFAULT PRIVILEGES FOR ROLE admin IN SCHEMA public GRANT SELECT,INSERT,DELETE,UPDATE ON TABLES TO authenticated;`,
]);

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
  yield escaped(clearDefaults + roles.map(createRole).join(''));
  let count = 0;
  /** Whether the text that follows belongs to an object's entry. */
  let isObject = false;
  for (const piece of pieces(dump.toString('utf8'))) {
    const type = header.exec(piece)?.[1];
    if (type !== undefined) isObject = !dataTypes.has(type);
    else if (isObject && !piece.startsWith('--') && piece.trim() !== '') {
      if (!ownEntries.has(piece.trim())) count++;
      isObject = false;
    }
    yield escaped(
      piece.replace(`\\restrict ${restrictKey}\n`, '').replace(`\\unrestrict ${restrictKey}\n`, ''),
    );
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
