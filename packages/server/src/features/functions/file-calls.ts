// `ctx.fs` on the service's side: the database's files, inside the function's `fsx_scope`. Paths are
// checked as text, which is enough because symbolic links are not followed here.

import type { FileEntry } from '@coppice/contract';
import type { CallResult } from '../../engine/runtime/sandbox.ts';
import { FileError, type Files, type FilesActor } from '../../kernel/files.ts';

export interface FileScope {
  read: readonly string[];
  write: readonly string[];
}

export interface FileCalls {
  call(method: string, args: Record<string, unknown>, bytes: Buffer): Promise<CallResult>;
}

const maxListed = 20_000;

/** A scope entry as it is kept: an absolute path without `/*` at its end. Undefined: not a path. */
export function parseScopePath(entry: string): string | undefined {
  const path = entry.startsWith('/') ? entry : `/${entry}`;
  const names = path
    .replace(/\/\*{1,2}$/, '')
    .split('/')
    .filter((name) => name !== '');
  if (names.some((name) => name === '.' || name === '..') || path.includes('\0')) return undefined;
  return `/${names.join('/')}`;
}

export function createFileCalls(files: Files, databaseId: string, scope: FileScope): FileCalls {
  const actor: FilesActor = { databaseId, role: 'admin', symlinks: 'refuse' };

  function admit(path: unknown, kind: keyof FileScope): string {
    if (typeof path !== 'string' || !path.startsWith('/'))
      throw new FileError('EINVAL', 'a path must start with /');
    const names = path.split('/').filter((name) => name !== '' && name !== '.');
    if (names.includes('..')) throw new FileError('EINVAL', '.. is not allowed in a path');
    const plain = `/${names.join('/')}`;
    const covered = scope[kind].some(
      (root) => root === '/' || plain === root || plain.startsWith(`${root}/`),
    );
    if (!covered)
      throw new FileError('EACCES', `${plain} is not in the function's fsx_scope.${kind}`);
    return plain;
  }
  async function listAll(path: string): Promise<FileEntry[]> {
    const entries: FileEntry[] = [];
    let after: string | undefined;
    do {
      const page = await files.readdir(actor, path, { after });
      entries.push(...page.entries);
      after = page.next ?? undefined;
      if (entries.length > maxListed)
        throw new FileError('EFBIG', `${path} has more than ${maxListed} entries`);
    } while (after !== undefined);
    return entries;
  }
  const value = async (result: Promise<unknown>): Promise<CallResult> => ({
    value: (await result) ?? null,
  });

  return {
    async call(method, args, bytes) {
      const options = (args.options ?? {}) as { recursive?: boolean; force?: boolean };
      const flags = { recursive: options.recursive === true, force: options.force === true };
      const read = () => admit(args.path, 'read');
      const write = () => admit(args.path, 'write');
      switch (method) {
        case 'read':
          return { bytes: await files.read(actor, read()) };
        case 'stat':
          return value(files.stat(actor, read(), { follow: false }));
        case 'readdir':
          return value(listAll(read()));
        case 'readlink':
          return value(files.readlink(actor, read()));
        case 'write':
          return value(files.write(actor, { operation: 'write', path: write() }, bytes));
        case 'append':
          return value(files.write(actor, { operation: 'append', path: write() }, bytes));
        case 'truncate':
          return value(files.truncate(actor, write(), Number(args.size)));
        case 'mkdir':
          return value(files.mkdir(actor, write(), { recursive: flags.recursive }));
        case 'unlink':
          return value(files.unlink(actor, write()));
        case 'rm':
          return value(files.rm(actor, write(), flags));
        case 'rename':
          return value(files.rename(actor, write(), admit(args.to, 'write')));
        default:
          throw new FileError('EINVAL', 'no such operation');
      }
    },
  };
}
