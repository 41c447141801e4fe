// The SQL of the files: calls of the functions in schema/database/0003-files.sql.
import type { FileEntry, FileListing } from '@coppice/contract';
import type pg from 'pg';
import type { Range, WriteTarget } from '../../kernel/files.ts';

/** `fs_chunks` holds this many bytes a row. */
export const chunkBytes = 65_536;
const queryTimeoutMs = 120_000;
/** To merge a large upload into a file, chunk by chunk. */
const adoptTimeoutMs = 15 * 60_000;

interface EntryRow {
  path: string;
  name: string;
  type: FileEntry['type'];
  mode: number;
  size: string;
  mtime: Date;
  ctime: Date;
  birthtime: Date;
  target: string | null;
}

const toEntry = (row: EntryRow): FileEntry => ({
  path: row.path,
  name: row.name,
  type: row.type,
  mode: row.mode,
  size: Number(row.size),
  mtime: row.mtime.toISOString(),
  ctime: row.ctime.toISOString(),
  birthtime: row.birthtime.toISOString(),
  target: row.target,
});

/** Statements have names, so that a session parses each only once. */
const statementNames = new Map<string, string>();

function statementName(text: string): string {
  const name = statementNames.get(text) ?? `files_${statementNames.size}`;
  statementNames.set(text, name);
  return name;
}

async function rows<R extends pg.QueryResultRow>(
  client: pg.Client,
  text: string,
  values: unknown[],
  timeoutMs = queryTimeoutMs,
): Promise<R[]> {
  const query = { name: statementName(text), text, values, query_timeout: timeoutMs };
  return (await client.query<R>(query)).rows;
}

async function entry(
  client: pg.Client,
  call: string,
  values: unknown[],
  timeoutMs?: number,
): Promise<FileEntry> {
  const [row] = await rows<EntryRow>(client, `select * from ${call}`, values, timeoutMs);
  return toEntry(row!);
}

export const stat = (client: pg.Client, path: string, follow: boolean) =>
  entry(client, 'fs.stat($1, $2)', [path, follow]);

export async function list(
  client: pg.Client,
  path: string,
  after: string | null,
  limit: number,
): Promise<FileListing> {
  const found = await rows<EntryRow>(client, 'select * from fs.list($1, $2, $3)', [
    path,
    after,
    limit + 1,
  ]);
  const entries = found.slice(0, limit).map(toEntry);
  return { entries, next: found.length > limit ? entries.at(-1)!.name : null };
}

export async function readlink(client: pg.Client, path: string): Promise<string> {
  const [row] = await rows<{ target: string }>(client, 'select fs.readlink($1) as target', [path]);
  return row!.target;
}

export async function read(client: pg.Client, path: string, range: Range): Promise<Buffer> {
  const [row] = await rows<{ content: Buffer }>(client, 'select fs.read($1, $2, $3) as content', [
    path,
    range.offset ?? 0,
    range.length ?? null,
  ]);
  return row!.content;
}

export function write(client: pg.Client, target: WriteTarget, content: Buffer): Promise<FileEntry> {
  switch (target.operation) {
    case 'write':
      return entry(client, 'fs.write($1, $2, $3, $4, $5)', [
        target.path,
        content,
        target.mode ?? null,
        target.exclusive ?? false,
        target.parents ?? false,
      ]);
    case 'append':
      return entry(client, 'fs.append($1, $2, $3)', [target.path, content, target.mode ?? null]);
    case 'pwrite':
      return entry(client, 'fs.pwrite($1, $2, $3)', [target.path, target.offset, content]);
  }
}

export const truncate = (client: pg.Client, path: string, size: number) =>
  entry(client, 'fs.truncate($1, $2)', [path, size]);

export const mkdir = (client: pg.Client, path: string, mode: number, parents: boolean) =>
  entry(client, 'fs.mkdir($1, $2, $3)', [path, mode, parents]);

export async function unlink(client: pg.Client, path: string): Promise<void> {
  await rows(client, 'select fs.unlink($1)', [path]);
}

export async function rm(
  client: pg.Client,
  path: string,
  recursive: boolean,
  force: boolean,
): Promise<void> {
  await rows(client, 'select fs.rm($1, $2, $3)', [path, recursive, force]);
}

export const rename = (client: pg.Client, path: string, to: string) =>
  entry(client, 'fs.rename($1, $2)', [path, to]);

export const symlink = (client: pg.Client, path: string, target: string) =>
  entry(client, 'fs.symlink($1, $2)', [path, target]);

export const chmod = (client: pg.Client, path: string, mode: number) =>
  entry(client, 'fs.chmod($1, $2)', [path, mode]);

export const utimes = (client: pg.Client, path: string, mtime: Date) =>
  entry(client, 'fs.utimes($1, $2)', [path, mtime]);

// What follows runs as the supervisor, on behalf of a role that was asked about first.

/** What a role must be allowed to call, for streams to reach the tables on its behalf. */
const signatures = {
  read: 'fs.read(text,bigint,bigint)',
  write: 'fs.write(text,bytea,integer,boolean,boolean)',
};

export async function may(
  client: pg.Client,
  role: string,
  what: keyof typeof signatures,
): Promise<boolean> {
  const [row] = await rows<{ may: boolean | null }>(
    client,
    `select has_schema_privilege(r.oid, 'fs', 'usage')
        and has_function_privilege(r.oid, $2, 'execute') as may
     from pg_catalog.pg_roles r where r.rolname = $1`,
    [role, signatures[what]],
  );
  return row?.may === true;
}

/** The file at a path, and whose chunks its content is. */
export async function findContent(
  client: pg.Client,
  path: string,
): Promise<{ entry: FileEntry; contentId: string }> {
  const [row] = await rows<EntryRow & { content_id: string }>(
    client,
    `select entry.*, coppice.fs_content(place) as content_id
     from coppice.fs_file($1) place, coppice.fs_entry(place) entry`,
    [path],
  );
  return { entry: toEntry(row!), contentId: row!.content_id };
}

/** For COPY, which takes no parameters. */
export const selectChunks = (contentId: string, first: number, last: number) =>
  `select n, data from coppice.fs_chunks
   where content_id = ${BigInt(contentId)} and n between ${BigInt(first)} and ${BigInt(last)} order by n`;

/** Fails as the upload's end would, as far as that can be told; else the bytes there is room for. */
export async function prepareUpload(client: pg.Client, target: WriteTarget): Promise<number> {
  const { exclusive = false, parents = false } = target.operation === 'write' ? target : {};
  const text = 'select coppice.fs_prepare($1, $2, $3, $4) as room';
  const values = [target.operation, target.path, exclusive, parents];
  return Number((await rows<{ room: string }>(client, text, values))[0]!.room);
}

export async function newContent(client: pg.Client): Promise<string> {
  const text = `select nextval('coppice.fs_content_ids') as id`;
  return (await rows<{ id: string }>(client, text, []))[0]!.id;
}

export function adopt(client: pg.Client, target: WriteTarget, content: string, size: number) {
  const { exclusive = false, parents = false } = target.operation === 'write' ? target : {};
  const [offset, mode] =
    target.operation === 'pwrite' ? [target.offset, null] : [0, target.mode ?? null];
  const values = [target.operation, target.path, content, size, offset, mode, exclusive, parents];
  const call = 'coppice.fs_adopt($1, $2, $3, $4, $5, $6, $7, $8)';
  return entry(client, call, values, adoptTimeoutMs);
}

export async function setQuota(client: pg.Client, quotaBytes: number): Promise<void> {
  await rows(client, 'update coppice.fs_settings set quota_bytes = $1 where quota_bytes <> $1', [
    quotaBytes,
  ]);
}

export async function channel(client: pg.Client): Promise<string> {
  const text = 'select channel from coppice.fs_settings';
  return (await rows<{ channel: string }>(client, text, []))[0]!.channel;
}

/** Grows with every change; the same number twice means nothing happened in between. */
export async function generation(client: pg.Client): Promise<string> {
  const text = 'select generation from coppice.fs_volume';
  return (await rows<{ generation: string }>(client, text, []))[0]!.generation;
}

/** Rows of chunks that are no longer of use, as far as Postgres has counted. */
export async function deadChunkRows(client: pg.Client): Promise<number> {
  const text = `select pg_stat_get_dead_tuples(reltoastrelid) as dead
    from pg_catalog.pg_class where oid = 'coppice.fs_chunks'::regclass`;
  return Number((await rows<{ dead: string }>(client, text, []))[0]!.dead);
}

export async function vacuum(client: pg.Client): Promise<void> {
  await client.query('vacuum (skip_locked) coppice.fs_chunks');
}
