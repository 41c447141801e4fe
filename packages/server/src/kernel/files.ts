// The files of a database as the edges and the functions see them. What a role may do is decided by
// its privileges on the schema `fs` inside the database.
import type { FileEntry, FileErrorCode, FileEvent, FileListing } from '@coppice/contract';

export class FileError extends Error {
  readonly code: FileErrorCode;

  constructor(code: FileErrorCode, message: string, options: { cause?: unknown } = {}) {
    super(message, options);
    this.name = 'FileError';
    this.code = code;
  }
}

/** On whose behalf. */
export interface FilesActor {
  databaseId: string;
  role: string;
  /** `refuse`: a path through a symbolic link is EACCES, so that checks of its text hold. */
  symlinks?: 'follow' | 'refuse';
}

export interface WriteOptions {
  /** Of a file that is made; 0o644 if omitted. An existing file keeps its own. */
  mode?: number;
  /** EEXIST if it is there. */
  exclusive?: boolean;
  /** Make missing directories. */
  parents?: boolean;
}

export type WriteTarget =
  | ({ operation: 'write'; path: string } & WriteOptions)
  | { operation: 'append'; path: string; mode?: number }
  | { operation: 'pwrite'; path: string; offset: number };

export interface Range {
  offset?: number;
  length?: number;
}

/** A file that is being read: every byte is of the same instant. */
export interface OpenFile {
  entry: FileEntry;
  /** Bytes that `chunks` will give. */
  length: number;
  chunks: AsyncIterable<Buffer>;
}

/** Every failure is a `FileError`. */
export interface Files {
  stat(actor: FilesActor, path: string, options?: { follow?: boolean }): Promise<FileEntry>;
  readdir(
    actor: FilesActor,
    path: string,
    options?: { after?: string; limit?: number },
  ): Promise<FileListing>;
  readlink(actor: FilesActor, path: string): Promise<string>;
  /** Up to 16 MiB at once; `readStream` has no limit. */
  read(actor: FilesActor, path: string, range?: Range): Promise<Buffer>;
  /** Calls `consume` with the open file; what it returns is returned. */
  readStream<T>(
    actor: FilesActor,
    path: string,
    range: Range & { signal?: AbortSignal },
    consume: (file: OpenFile) => Promise<T>,
  ): Promise<T>;
  /** Writes `content` as `target` says. */
  write(actor: FilesActor, target: WriteTarget, content: Buffer): Promise<FileEntry>;
  /**
   * The same from a stream: what it held is there when it ends, all of it, or nothing if it throws.
   * It is not touched before the database is ready to take it.
   */
  writeStream(
    actor: FilesActor,
    target: WriteTarget,
    content: AsyncIterable<Buffer>,
    signal?: AbortSignal,
  ): Promise<FileEntry>;
  /** All or nothing. */
  batchWrite(
    actor: FilesActor,
    files: ({ path: string; content: Buffer } & WriteOptions)[],
  ): Promise<FileEntry[]>;
  truncate(actor: FilesActor, path: string, size: number): Promise<FileEntry>;
  mkdir(
    actor: FilesActor,
    path: string,
    options?: { mode?: number; recursive?: boolean },
  ): Promise<FileEntry>;
  unlink(actor: FilesActor, path: string): Promise<void>;
  rm(
    actor: FilesActor,
    path: string,
    options?: { recursive?: boolean; force?: boolean },
  ): Promise<void>;
  rename(actor: FilesActor, path: string, to: string): Promise<FileEntry>;
  symlink(actor: FilesActor, path: string, target: string): Promise<FileEntry>;
  chmod(actor: FilesActor, path: string, mode: number): Promise<FileEntry>;
  utimes(actor: FilesActor, path: string, mtime: Date): Promise<FileEntry>;
  /** Calls `listener` after every change at or below `path`; gives back how to stop. */
  watch(
    actor: FilesActor,
    path: string,
    options: { recursive?: boolean },
    listener: (event: FileEvent) => void,
  ): Promise<() => void>;
}
