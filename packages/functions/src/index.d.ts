// Types for the authors of functions.
//
//   import type { Handler } from '@coppice/functions';
//
//   export const handler: Handler<{ name: string }> = async ({ name }, ctx) => {
//     const { rows } = await ctx.db.query('select * from greetings where name = $1', [name]);
//     return { greeting: rows[0]?.text ?? 'Hello' };
//   };

/** What `entrypoint` names. What it returns (or resolves to) becomes the JSON of the result. */
export type Handler<Input = Record<string, unknown>, Result = unknown> = (
  input: Input,
  ctx: Context,
) => Result | Promise<Result>;

export interface Context {
  /** The database, as the function's `run_as` role. */
  readonly db: Database;
  /** The database's files, inside the function's `fsx_scope`. */
  readonly fs: Files;
  /** The values of `secret_bindings`, by name. They are redacted from logs and errors. */
  readonly secrets: Readonly<Record<string, string>>;
  readonly self: {
    readonly functionId: string;
    readonly versionId: string;
    readonly runId: string;
    readonly triggerType: 'invoke' | 'cron';
  };
}

export interface Database extends Queries {
  /**
   * Commits when `work` resolves, rolls back when it throws. What is still open when the run ends
   * is rolled back.
   */
  transaction<T>(work: (tx: Queries) => Promise<T>): Promise<T>;
}

export interface Queries {
  /** Runs SQL with `$1…` parameters. A failure is a `DatabaseError`. */
  query<Row = Record<string, Value>>(
    sql: string,
    params?: readonly Parameter[],
  ): Promise<QueryResult<Row>>;
}

export interface QueryResult<Row = Record<string, Value>> {
  rows: Row[];
  /** Rows returned or affected. */
  rowCount: number;
  /** `SELECT`, `INSERT`, … */
  command: string;
}

/**
 * Numbers for integers (text beyond 2^53) and floats, text for `numeric`, `Date` for `timestamptz`,
 * bytes for `bytea`, parsed JSON, arrays; text for everything else.
 */
export type Value = string | number | boolean | null | Date | Uint8Array | object | Value[];

/** Objects are sent as JSON, arrays as Postgres arrays. */
export type Parameter = Value | bigint | undefined;

export interface DatabaseError extends Error {
  name: 'DatabaseError';
  /** SQLSTATE, such as `23505`. */
  code: string;
  detail?: string;
  hint?: string;
  constraint?: string;
  table?: string;
  column?: string;
  position?: string;
}

/** Paths are absolute, without `..`; symbolic links are not followed. A failure is a `FileError`. */
export interface Files {
  /** Up to 16 MiB. */
  read(path: string): Promise<Uint8Array>;
  readText(path: string): Promise<string>;
  write(path: string, content: string | Uint8Array): Promise<FileEntry>;
  append(path: string, content: string | Uint8Array): Promise<FileEntry>;
  truncate(path: string, size?: number): Promise<FileEntry>;
  stat(path: string): Promise<FileEntry>;
  readdir(path: string): Promise<FileEntry[]>;
  readlink(path: string): Promise<string>;
  mkdir(path: string, options?: { recursive?: boolean }): Promise<FileEntry>;
  unlink(path: string): Promise<null>;
  rm(path: string, options?: { recursive?: boolean; force?: boolean }): Promise<null>;
  rename(path: string, to: string): Promise<FileEntry>;
}

export interface FileEntry {
  path: string;
  name: string;
  type: 'file' | 'directory' | 'symlink';
  mode: number;
  size: number;
  mtime: string;
  ctime: string;
  birthtime: string;
  target: string | null;
}

export interface FileError extends Error {
  name: 'FileError';
  code:
    | 'ENOENT'
    | 'EISDIR'
    | 'ENOTDIR'
    | 'EEXIST'
    | 'ENOTEMPTY'
    | 'EACCES'
    | 'EFBIG'
    | 'EINVAL'
    | 'EIO';
}
