// The messages of the files' WebSocket: requests and their replies, streams, watches.
import type { FileEntry, FileErrorCode, FileEvent } from '@coppice/contract';

export class FilesError extends Error {
  readonly code: FileErrorCode;

  constructor(code: FileErrorCode, message: string) {
    super(message);
    this.name = 'FilesError';
    this.code = code;
  }
}

export type IncomingPiece = { end: false; bytes: Uint8Array } | { end: true; sha256: string };

export interface IncomingStream {
  /** The stream has this id; must be called before its first frame can arrive. */
  begin(stream: number): void;
  next(): Promise<IncomingPiece>;
  cancel(reason: unknown): void;
}

export interface OutgoingStream {
  /** Resolves when more may be sent: at most `windowBytes` are under way. */
  send(bytes: Uint8Array, windowBytes: number): Promise<void>;
  end(sha256: string): Promise<FileEntry>;
  fail(reason: unknown): void;
  onReceived: (received: number) => void;
  readonly sentBytes: number;
}

export interface Subscription extends AsyncIterable<FileEvent> {
  stop(): void;
}

export interface FilesSocket {
  /** `onReply` runs before any later message is looked at. */
  request<T>(op: string, body: object, onReply?: (data: unknown) => void): Promise<T>;
  /** Sends a message that is not answered. */
  post(message: object): void;
  expectStream(): IncomingStream;
  openUpload(op: string, target: object): Promise<OutgoingStream>;
  subscribe(target: object): Promise<Subscription>;
  close(): void;
  readonly closed: Promise<{ code: number; reason: string }>;
}

interface Message {
  id?: number;
  ok?: boolean;
  data?: unknown;
  error?: { code: FileErrorCode; message: string };
  stream?: number;
  received?: number;
  event?: FileEvent;
}

interface StreamHandlers {
  bytes(bytes: Uint8Array): void;
  /** A message about the stream: progress, its end, or its failure. */
  message(message: Message): void;
  fail(error: unknown): void;
}

export async function createFilesSocket(
  url: string,
  Socket: typeof WebSocket,
): Promise<FilesSocket> {
  const socket = new Socket(url);
  socket.binaryType = 'arraybuffer';
  await new Promise<void>((resolve, reject) => {
    socket.onopen = () => resolve();
    socket.onerror = socket.onclose = () =>
      reject(new FilesError('EIO', `could not connect to ${url}`));
  });

  const waiting = new Map<
    number,
    { resolve(data: unknown): void; reject(error: unknown): void; onReply?(data: unknown): void }
  >();
  const streams = new Map<number, StreamHandlers>();
  const events = new Map<number, (event: FileEvent) => void>();
  const closed = Promise.withResolvers<{ code: number; reason: string }>();
  let lastId = 0;

  socket.onerror = null;
  socket.onclose = ({ code, reason }) => {
    const error = new FilesError('EIO', `the connection closed (${code} ${reason})`.trim());
    for (const { reject } of waiting.values()) reject(error);
    for (const stream of streams.values()) stream.fail(error);
    waiting.clear();
    streams.clear();
    closed.resolve({ code, reason });
  };
  socket.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => {
    if (typeof data !== 'string') {
      const id = Number(new DataView(data).getBigUint64(0));
      streams.get(id)?.bytes(new Uint8Array(data, 8));
      return;
    }
    const message = JSON.parse(data) as Message;
    if (message.stream !== undefined) streams.get(message.stream)?.message(message);
    else if (message.event && message.id !== undefined) events.get(message.id)?.(message.event);
    else settle(message);
  };

  function settle({ id, ok, data, error }: Message): void {
    const request = id === undefined ? undefined : waiting.get(id);
    if (!request || id === undefined) return;
    waiting.delete(id);
    if (ok) {
      request.onReply?.(data);
      request.resolve(data);
    } else request.reject(toError(error));
  }

  function post(message: object): void {
    if (socket.readyState === Socket.OPEN) socket.send(JSON.stringify(message));
  }

  function request<T>(
    op: string,
    body: object,
    onReply?: (data: unknown) => void,
    id = ++lastId,
  ): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      if (socket.readyState !== Socket.OPEN)
        return reject(new FilesError('EIO', 'the connection is closed'));
      waiting.set(id, { resolve: resolve as (data: unknown) => void, reject, onReply });
      post({ id, op, ...body });
    });
  }

  return {
    request: (op, body, onReply) => request(op, body, onReply),
    post,
    closed: closed.promise,
    close: () => socket.close(1000),

    expectStream() {
      const queue: IncomingPiece[] = [];
      let failure: { error: unknown } | undefined;
      let wake: (() => void) | undefined;
      let stream = 0;
      const fail = (error: unknown) => {
        failure ??= { error };
        streams.delete(stream);
        wake?.();
      };
      return {
        begin(id) {
          stream = id;
          streams.set(id, {
            bytes(bytes) {
              queue.push({ end: false, bytes });
              wake?.();
            },
            message({ ok, data, error }) {
              if (!ok) return fail(toError(error));
              streams.delete(id);
              queue.push({ end: true, sha256: (data as { sha256: string }).sha256 });
              wake?.();
            },
            fail,
          });
        },
        async next() {
          while (queue.length === 0 && !failure)
            await new Promise<void>((resolve) => {
              wake = resolve;
            });
          if (failure) throw failure.error;
          return queue.shift()!;
        },
        cancel(reason) {
          queue.length = 0;
          if (streams.has(stream)) request('abort', { stream }).catch(() => {});
          fail(reason);
        },
      };
    },

    async openUpload(op, target) {
      let receivedBytes = 0;
      let failure: { error: unknown } | undefined;
      let wake: (() => void) | undefined;
      let stream = 0;
      const outgoing = {
        onReceived: (_received: number) => {},
        sentBytes: 0,
        async send(bytes: Uint8Array, windowBytes: number) {
          while (!failure && outgoing.sentBytes - receivedBytes >= windowBytes)
            await new Promise<void>((resolve) => {
              wake = resolve;
            });
          if (failure) throw failure.error;
          const frame = new Uint8Array(8 + bytes.length);
          new DataView(frame.buffer).setBigUint64(0, BigInt(stream));
          frame.set(bytes, 8);
          outgoing.sentBytes += bytes.length;
          socket.send(frame);
        },
        async end(sha256: string) {
          if (failure) throw failure.error;
          const entry = await request<FileEntry>('end', { stream, sha256 });
          streams.delete(stream);
          return entry;
        },
        fail(reason: unknown) {
          if (failure) return;
          failure = { error: reason };
          if (streams.delete(stream)) request('abort', { stream }).catch(() => {});
          wake?.();
        },
      };
      await request<{ stream: number }>(op, { ...target, stream: true }, (data) => {
        stream = (data as { stream: number }).stream;
        streams.set(stream, {
          bytes() {},
          message({ received, ok, error }) {
            if (ok === false) {
              failure ??= { error: toError(error) };
              streams.delete(stream);
            } else if (received !== undefined) {
              receivedBytes = received;
              outgoing.onReceived(received);
            }
            wake?.();
          },
          fail(error) {
            failure ??= { error };
            wake?.();
          },
        });
      });
      return outgoing;
    },

    async subscribe(target) {
      const id = ++lastId;
      const queue: FileEvent[] = [];
      let done = false;
      let wake: (() => void) | undefined;
      const stop = () => {
        if (done) return;
        done = true;
        events.delete(id);
        request('unwatch', { watch: id }).catch(() => {});
        wake?.();
      };
      events.set(id, (event) => {
        queue.push(event);
        wake?.();
      });
      void closed.promise.then(() => {
        done = true;
        wake?.();
      });
      try {
        await request('watch', target, undefined, id);
      } catch (error) {
        events.delete(id);
        throw error;
      }
      return {
        stop,
        async *[Symbol.asyncIterator]() {
          while (true) {
            yield* queue.splice(0);
            if (done) return;
            if (queue.length === 0)
              await new Promise<void>((resolve) => {
                wake = resolve;
              });
          }
        },
      };
    },
  };
}

function toError(error: Message['error']): FilesError {
  return new FilesError(error?.code ?? 'EIO', error?.message ?? 'unknown failure');
}
