// The files of a database, over the WebSocket at `fs_websocket_url`. Works in browsers and in Node.
//
//   const files = await connectFiles({ url, username: `${id}.admin`, password });
//   await files.write('/notes/today.txt', 'Hello', { parents: true });
//   for await (const event of files.watch('/notes')) console.log(event);
import {
  type FileEntry,
  type FileErrorCode,
  type FileEvent,
  type FileListing,
  fileStreamBytes,
} from '@coppice/contract';
import {
  type Content,
  contentPieces,
  fromBase64,
  smallContent,
  streamPieces,
  toBase64,
} from './files-content.ts';
import { createFilesSocket, FilesError, type FilesSocket } from './files-socket.ts';
import { createSha256 } from './sha256.ts';

export type { Content, FileEntry, FileErrorCode, FileEvent };
export { FilesError };

export interface FilesOptions {
  /** `fs_websocket_url` of a connect token or of fs-connect. */
  url: string;
  /** `<database id>.<role>` */
  username: string;
  /** The role's password, a connect token or a connect key. */
  password: string;
  /** In place of the global one. */
  WebSocket?: typeof WebSocket;
}

export interface TransferOptions {
  /** Called as bytes arrive; `total` where it is known. */
  onProgress?(transferred: number, total: number | undefined): void;
  signal?: AbortSignal;
}

export interface WriteOptions extends TransferOptions {
  mode?: number;
  /** Fail with EEXIST if it is there. */
  exclusive?: boolean;
  /** Make missing directories. */
  parents?: boolean;
}

export interface ReadOptions extends TransferOptions {
  offset?: number;
  length?: number;
}

export interface Download {
  entry: FileEntry;
  /** Bytes to come. */
  size: number;
  /** Errors if the content does not have the checksum the service sent. */
  stream: ReadableStream<Uint8Array>;
}

export interface BatchFile {
  path: string;
  content: string | Uint8Array;
  mode?: number;
  exclusive?: boolean;
}

/** Bytes that may be under way on a stream before the other side says that it took them. */
const windowBytes = 2 * 1024 * 1024;

export async function connectFiles(options: FilesOptions): Promise<FilesClient> {
  const socket = await createFilesSocket(options.url, options.WebSocket ?? globalThis.WebSocket);
  try {
    await socket.request('auth', { username: options.username, password: options.password });
  } catch (error) {
    socket.close();
    throw error;
  }
  return new FilesClient(socket);
}

export class FilesClient {
  readonly #socket: FilesSocket;

  /** Use `connectFiles`. */
  constructor(socket: FilesSocket) {
    this.#socket = socket;
  }

  /** Resolves when the connection has ended, with the reason. */
  get closed(): Promise<{ code: number; reason: string }> {
    return this.#socket.closed;
  }

  close(): void {
    this.#socket.close();
  }

  stat(path: string, options: { follow?: boolean } = {}): Promise<FileEntry> {
    return this.#socket.request('stat', { path, ...options });
  }

  /** Every entry of a directory, by name. */
  async readdir(path: string): Promise<FileEntry[]> {
    const entries: FileEntry[] = [];
    let after: string | null = null;
    do {
      const page: FileListing = await this.#socket.request('readdir', { path, after });
      entries.push(...page.entries);
      after = page.next;
    } while (after !== null);
    return entries;
  }

  async readlink(path: string): Promise<string> {
    return (await this.#socket.request<{ target: string }>('readlink', { path })).target;
  }

  mkdir(path: string, options: { mode?: number; recursive?: boolean } = {}): Promise<FileEntry> {
    return this.#socket.request('mkdir', { path, ...options });
  }

  truncate(path: string, size = 0): Promise<FileEntry> {
    return this.#socket.request('truncate', { path, size });
  }

  async unlink(path: string): Promise<void> {
    await this.#socket.request('unlink', { path });
  }

  async rm(path: string, options: { recursive?: boolean; force?: boolean } = {}): Promise<void> {
    await this.#socket.request('rm', { path, ...options });
  }

  rename(path: string, to: string): Promise<FileEntry> {
    return this.#socket.request('rename', { path, to });
  }

  symlink(path: string, target: string): Promise<FileEntry> {
    return this.#socket.request('symlink', { path, target });
  }

  chmod(path: string, mode: number): Promise<FileEntry> {
    return this.#socket.request('chmod', { path, mode });
  }

  utimes(path: string, mtime: Date): Promise<FileEntry> {
    return this.#socket.request('utimes', { path, mtime: mtime.toISOString() });
  }

  /** Replaces the content, or makes the file. */
  write(path: string, content: Content, options: WriteOptions = {}): Promise<FileEntry> {
    const { mode, exclusive, parents, ...transfer } = options;
    return this.#store('write', { path, mode, exclusive, parents }, content, transfer);
  }

  append(path: string, content: Content, options: TransferOptions = {}): Promise<FileEntry> {
    return this.#store('append', { path }, content, options);
  }

  pwrite(
    path: string,
    offset: number,
    content: Content,
    options: TransferOptions = {},
  ): Promise<FileEntry> {
    return this.#store('pwrite', { path, offset }, content, options);
  }

  /** All of them or none. What is large goes with `write`. */
  async batchWrite(files: BatchFile[], options: { parents?: boolean } = {}): Promise<FileEntry[]> {
    const reply = await this.#socket.request<{ entries: FileEntry[] }>('batch_write', {
      ...options,
      files: files.map(({ content, ...file }) => ({ ...file, ...inline(content) })),
    });
    return reply.entries;
  }

  /** The whole content, or the part that was asked for. */
  async read(path: string, options: ReadOptions = {}): Promise<Uint8Array> {
    const reply = await this.#open(path, options, { encoding: 'base64' });
    if ('content' in reply) {
      options.onProgress?.(reply.size, reply.size);
      return fromBase64(reply.content);
    }
    const content = new Uint8Array(reply.size);
    let at = 0;
    for await (const piece of streamPieces(reply.stream)) {
      content.set(piece, at);
      at += piece.length;
    }
    return content;
  }

  async readText(path: string): Promise<string> {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(await this.read(path));
  }

  /** The content as a stream; reading slowly holds the service back. */
  download(path: string, options: ReadOptions = {}): Promise<Download> {
    return this.#open(path, options, { stream: true }) as Promise<Download>;
  }

  async #open(
    path: string,
    { offset, length, onProgress, signal }: ReadOptions,
    how: { stream: true } | { encoding: 'base64' },
  ): Promise<Download | { content: string; size: number }> {
    signal?.throwIfAborted();
    const incoming = this.#socket.expectStream();
    const reply = await this.#socket.request<
      { stream: number; size: number; entry: FileEntry } | { content: string; size: number }
    >('read', { path, offset, length, window: windowBytes, ...how }, (data) => {
      const { stream } = data as { stream?: number };
      if (stream !== undefined) incoming.begin(stream);
    });
    if ('content' in reply) return reply;

    const { stream: id, size, entry } = reply;
    const hash = createSha256();
    let received = 0;
    let acknowledged = 0;
    const onAbort = () => incoming.cancel(abortError(signal));
    signal?.addEventListener('abort', onAbort, { once: true });
    const stream = new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          const piece = await incoming.next();
          if (piece.end) {
            signal?.removeEventListener('abort', onAbort);
            if (piece.sha256 !== hash.digest() || received !== size)
              throw new FilesError(
                'EIO',
                'the content does not have the checksum it was sent with',
              );
            controller.close();
            return;
          }
          hash.update(piece.bytes);
          received += piece.bytes.length;
          if (received - acknowledged >= windowBytes / 4) {
            acknowledged = received;
            this.#socket.post({ op: 'ack', stream: id, received });
          }
          onProgress?.(received, size);
          controller.enqueue(piece.bytes);
        },
        cancel: () => {
          signal?.removeEventListener('abort', onAbort);
          incoming.cancel(new FilesError('EIO', 'cancelled'));
        },
      },
      { highWaterMark: 0 },
    );
    return { entry, size, stream };
  }

  /**
   * Changes at or below `path`, for as long as the loop over them runs. `ready` is called once
   * nothing that happens later can be missed.
   */
  async *watch(
    path: string,
    options: { recursive?: boolean; ready?: () => void; signal?: AbortSignal } = {},
  ): AsyncGenerator<FileEvent> {
    const { recursive, ready, signal } = options;
    const events = await this.#socket.subscribe({ path, recursive });
    const onAbort = () => events.stop();
    signal?.addEventListener('abort', onAbort);
    if (signal?.aborted) events.stop();
    ready?.();
    try {
      yield* events;
    } finally {
      signal?.removeEventListener('abort', onAbort);
      events.stop();
    }
  }

  async #store(
    operation: 'write' | 'append' | 'pwrite',
    target: Record<string, unknown>,
    content: Content,
    { onProgress, signal }: TransferOptions,
  ): Promise<FileEntry> {
    signal?.throwIfAborted();
    const small = smallContent(content, fileStreamBytes);
    if (small !== undefined) {
      const entry = await this.#socket.request<FileEntry>(operation, {
        ...target,
        ...inline(small),
      });
      const size =
        typeof small === 'string' ? new TextEncoder().encode(small).length : small.length;
      onProgress?.(size, size);
      return entry;
    }
    const outgoing = await this.#socket.openUpload(operation, target);
    const onAbort = () => outgoing.fail(abortError(signal));
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      const { total, pieces } = contentPieces(content);
      const hash = createSha256();
      outgoing.onReceived = (received) => onProgress?.(received, total);
      for await (const piece of pieces) {
        hash.update(piece);
        await outgoing.send(piece, windowBytes);
      }
      const entry = await outgoing.end(hash.digest());
      onProgress?.(outgoing.sentBytes, total);
      return entry;
    } catch (error) {
      outgoing.fail(error);
      throw error;
    } finally {
      signal?.removeEventListener('abort', onAbort);
    }
  }
}

function inline(content: string | Uint8Array): { content: string; encoding: 'utf8' | 'base64' } {
  if (typeof content === 'string') return { content, encoding: 'utf8' };
  return { content: toBase64(content), encoding: 'base64' };
}

function abortError(signal: AbortSignal | undefined): unknown {
  return signal?.reason ?? new FilesError('EIO', 'given up');
}
