// What a client may do once it is authenticated: requests, streams both ways, watches.
import { isUtf8 } from 'node:buffer';
import {
  type FileEntry,
  type FileEvent,
  type FileOperation,
  type FileRequest,
  fileStreamBytes,
} from '@coppice/contract';
import { FileError, type Files, type FilesActor, type WriteTarget } from '../../kernel/files.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Admission } from '../../kernel/login.ts';
import { createDownload, type Download } from './download.ts';
import { decodeFrame } from './frames.ts';
import type { Outbox } from './outbox.ts';
import {
  decodeContent,
  ProtocolError,
  parseEnvelope,
  parseRequest,
  type RequestId,
} from './requests.ts';
import { createUpload, type Upload } from './upload.ts';

export interface SessionLimits {
  requestsInFlight: number;
  streams: number;
  watches: number;
  /** A stream on which nothing moves for this long is given up. */
  stallMs: number;
}

export interface Session {
  /** Both throw a `ProtocolError` for what no client should send. */
  text(text: string): void;
  binary(frame: Buffer): void;
  /** Requests, streams or watches are under way. */
  readonly busy: boolean;
  /** Gives up whatever is under way. */
  close(): void;
}

/** Uploads may queue this much on a connection before it is no longer read. */
const pauseAtBytes = 1024 * 1024;
/** How often an upload hears how far it has come. */
const progressBytes = 256 * 1024;

type Handlers = {
  [O in Exclude<FileOperation, 'auth' | 'ack'>]: {
    scope?: 'fs:read' | 'fs:write';
    /** `replied` means that the reply has been sent already. */
    run(body: FileRequest<O>, id: RequestId): Promise<unknown>;
  };
};
const replied = Symbol('replied');

export function createSession(deps: {
  admission: Admission;
  files: Files;
  outbox: Outbox;
  /** Stops and resumes reading from the client. */
  socket: { pause(): void; resume(): void };
  limits: SessionLimits;
  logger: Logger;
}): Session {
  const { admission, files, outbox, socket, limits, logger } = deps;
  const actor: FilesActor = { databaseId: admission.databaseId, role: admission.role };
  const closing = new AbortController();
  const uploads = new Map<number, Upload>();
  const downloads = new Map<number, { download: Download; stop: AbortController }>();
  /** Announced, but the database is not ready for them yet. */
  const pendingStreams = new Set<number>();
  /** Uploads that failed before their `end`, which then gets the reason. */
  const failedUploads = new Map<number, FileError>();
  const watches = new Map<RequestId, () => void>();
  let requestsInFlight = 0;
  let lastStream = 0;
  let paused = false;

  const send = (message: object) => outbox.send(JSON.stringify(message)).catch(() => {});
  const sendError = (envelope: { id: RequestId; stream?: number }, error: unknown) => {
    const { code, message } = asFileError(error);
    return send({ ...envelope, ok: false, error: { code, message } });
  };

  function asFileError(error: unknown): FileError {
    if (error instanceof FileError) return error;
    logger.error({ err: error, databaseId: actor.databaseId }, 'files request failed');
    return new FileError('EIO', 'internal error');
  }

  async function answer(id: RequestId, message: Record<string, unknown>): Promise<void> {
    if (requestsInFlight >= limits.requestsInFlight)
      return sendError({ id }, new FileError('EIO', 'too many requests in flight'));
    requestsInFlight += 1;
    try {
      const { operation, body } = parseRequest(id, message);
      if (operation === 'auth' || operation === 'ack')
        throw new FileError('EINVAL', 'already authenticated');
      const handler = handlers[operation] as Handlers['stat'];
      if (handler.scope && !admission.scopes.has(handler.scope))
        throw new FileError('EACCES', `this credential lacks the scope ${handler.scope}`);
      // A client that asks without reading the answers waits here.
      await outbox.room();
      const data = await handler.run(body as FileRequest<'stat'>, id);
      if (data !== replied) await send({ id, ok: true, data: data ?? null });
    } catch (error) {
      await sendError({ id }, error);
    } finally {
      requestsInFlight -= 1;
    }
  }

  function newStream(): number {
    if (pendingStreams.size + uploads.size + downloads.size >= limits.streams)
      throw new FileError('EIO', 'too many streams on this connection');
    lastStream += 1;
    pendingStreams.add(lastStream);
    return lastStream;
  }

  /** Content that comes with the request, or after it as a stream. */
  async function store(
    id: RequestId,
    target: WriteTarget,
    { content, encoding, stream }: Pick<FileRequest<'write'>, 'content' | 'encoding' | 'stream'>,
  ): Promise<unknown> {
    if (stream) {
      if (content !== undefined)
        throw new FileError('EINVAL', 'either content or a stream, not both');
      return startUpload(id, target);
    }
    if (content === undefined) throw new FileError('EINVAL', 'content or stream is required');
    return files.write(actor, target, decodeContent(content, encoding));
  }

  function startUpload(id: RequestId, target: WriteTarget): Promise<{ stream: number }> {
    const stream = newStream();
    const started = Promise.withResolvers<{ stream: number }>();
    let reportedBytes = 0;
    const upload = createUpload({
      stallMs: limits.stallMs,
      outcome: () => outcome,
      onReady() {
        pendingStreams.delete(stream);
        uploads.set(stream, upload);
        started.resolve({ stream });
        if (closing.signal.aborted) upload.fail(new FileError('EIO', 'the connection closed'));
      },
      onFlow(takenBytes) {
        balance();
        if (takenBytes - reportedBytes < progressBytes) return;
        reportedBytes = takenBytes;
        void send({ id, stream, received: takenBytes });
      },
    });
    const outcome: Promise<FileEntry> = files
      .writeStream(actor, target, upload, closing.signal)
      .finally(() => {
        pendingStreams.delete(stream);
        uploads.delete(stream);
        balance();
      });
    outcome.catch((error) => {
      started.reject(error);
      if (upload.ending) return;
      remember(stream, asFileError(error));
    });
    started.promise.then(
      () =>
        outcome.catch((error) => {
          if (!upload.ending) void sendError({ id, stream }, error);
        }),
      () => {},
    );
    return started.promise;
  }

  function remember(stream: number, failure: FileError): void {
    failedUploads.set(stream, failure);
    for (const old of failedUploads.keys()) {
      if (failedUploads.size <= limits.streams) break;
      failedUploads.delete(old);
    }
  }

  /** Reads from the client only while the database keeps up. */
  function balance(): void {
    let queuedBytes = 0;
    for (const upload of uploads.values()) queuedBytes += upload.queuedBytes;
    if (!paused && queuedBytes > pauseAtBytes) socket.pause();
    else if (paused && queuedBytes < pauseAtBytes / 2) socket.resume();
    else return;
    paused = !paused;
  }

  function startDownload(id: RequestId, body: FileRequest<'read'>): Promise<typeof replied> {
    const stream = newStream();
    const started = Promise.withResolvers<typeof replied>();
    const stop = new AbortController();
    const signal = AbortSignal.any([closing.signal, stop.signal]);
    const download = createDownload(stream, outbox, { ...limits, window: body.window });
    files
      .readStream(
        actor,
        body.path,
        { offset: body.offset, length: body.length, signal },
        (file) => {
          pendingStreams.delete(stream);
          downloads.set(stream, { download, stop });
          const { entry, length: size } = file;
          void send({ id, ok: true, data: { stream, size, entry } });
          started.resolve(replied);
          return download.run(file, signal);
        },
      )
      .then((data) => send({ id, stream, ok: true, data }))
      .catch((error) => {
        const begun = downloads.has(stream);
        started.reject(error);
        if (begun) void sendError({ id, stream }, error);
      })
      .finally(() => {
        pendingStreams.delete(stream);
        downloads.delete(stream);
      });
    return started.promise;
  }

  function publish(id: RequestId, path: string, event: FileEvent): void {
    if (!outbox.full) return void send({ id, event });
    if (slowWatches.has(id)) return;
    slowWatches.add(id);
    void outbox.room().then(() => {
      slowWatches.delete(id);
      return send({ id, event: { type: 'rescan', path } });
    });
  }
  /** Watches whose events are being left out, since the client does not take them. */
  const slowWatches = new Set<RequestId>();

  const read = 'fs:read' as const;
  const write = 'fs:write' as const;
  const handlers: Handlers = {
    stat: { scope: read, run: (body) => files.stat(actor, body.path, body) },
    readdir: { scope: read, run: (body) => files.readdir(actor, body.path, body) },
    readlink: {
      scope: read,
      run: async (body) => ({ target: await files.readlink(actor, body.path) }),
    },
    read: {
      scope: read,
      async run(body, id) {
        if (body.stream) return startDownload(id, body);
        const content = await files.read(actor, body.path, {
          offset: body.offset,
          length: Math.min(body.length ?? fileStreamBytes, fileStreamBytes),
        });
        return content.length < fileStreamBytes
          ? encodeContent(content, body.encoding)
          : startDownload(id, body);
      },
    },
    write: {
      scope: write,
      run: ({ path, mode, exclusive, parents, ...content }, id) =>
        store(id, { operation: 'write', path, mode, exclusive, parents }, content),
    },
    append: {
      scope: write,
      run: ({ path, mode, ...content }, id) =>
        store(id, { operation: 'append', path, mode }, content),
    },
    pwrite: {
      scope: write,
      run: ({ path, offset, ...content }, id) =>
        store(id, { operation: 'pwrite', path, offset }, content),
    },
    truncate: { scope: write, run: ({ path, size = 0 }) => files.truncate(actor, path, size) },
    mkdir: { scope: write, run: (body) => files.mkdir(actor, body.path, body) },
    unlink: { scope: write, run: ({ path }) => files.unlink(actor, path) },
    rm: { scope: write, run: (body) => files.rm(actor, body.path, body) },
    rename: { scope: write, run: ({ path, to }) => files.rename(actor, path, to) },
    symlink: { scope: write, run: ({ path, target }) => files.symlink(actor, path, target) },
    chmod: { scope: write, run: ({ path, mode }) => files.chmod(actor, path, mode) },
    utimes: { scope: write, run: ({ path, mtime }) => files.utimes(actor, path, parseTime(mtime)) },
    batch_write: {
      scope: write,
      run: async ({ files: list, parents }) => ({
        entries: await files.batchWrite(
          actor,
          list.map(({ content, encoding, ...options }) => ({
            ...options,
            parents,
            content: decodeContent(content, encoding),
          })),
        ),
      }),
    },
    watch: {
      scope: read,
      async run(body, id) {
        if (watches.has(id)) throw new FileError('EINVAL', 'a watch of this id exists');
        if (watches.size >= limits.watches)
          throw new FileError('EIO', 'too many watches on this connection');
        watches.set(id, () => {});
        try {
          const stop = await files.watch(actor, body.path, body, (event) =>
            publish(id, body.path, event),
          );
          if (closing.signal.aborted) stop();
          watches.set(id, stop);
        } catch (error) {
          watches.delete(id);
          throw error;
        }
        return { watch: id };
      },
    },
    unwatch: {
      async run({ watch }) {
        const stop = watches.get(watch);
        if (!stop) throw new FileError('EINVAL', 'no such watch');
        stop();
        watches.delete(watch);
      },
    },
    end: {
      async run({ stream, sha256 }) {
        const upload = uploads.get(stream);
        if (upload && !upload.ending) return upload.end(sha256);
        throw failedUploads.get(stream) ?? new FileError('EINVAL', 'no such upload');
      },
    },
    abort: {
      async run({ stream }) {
        downloads.get(stream)?.stop.abort();
        uploads.get(stream)?.fail(new FileError('EIO', 'given up by the client'));
      },
    },
  };

  return {
    text(text) {
      const { id, message } = parseEnvelope(text);
      if (message.op === 'ack') {
        const { stream, received } = message as { stream?: unknown; received?: unknown };
        if (typeof stream !== 'number' || typeof received !== 'number')
          throw new ProtocolError('ack takes a stream and how much of it was received');
        downloads.get(stream)?.download.acknowledge(received);
      } else void answer(id, message);
    },

    binary(bytes) {
      const frame = decodeFrame(bytes);
      if (!frame) throw new ProtocolError('a binary frame starts with the 8 bytes of a stream id');
      const { stream } = frame;
      if (stream < 1 || stream > lastStream || pendingStreams.has(stream) || downloads.has(stream))
        throw new ProtocolError(`no upload has the stream id ${stream}`);
      // Frames of an upload that has failed or ended may still be on their way: nobody wants them.
      uploads.get(stream)?.push(frame.bytes);
    },

    get busy() {
      return (
        requestsInFlight > 0 ||
        uploads.size + downloads.size + pendingStreams.size > 0 ||
        watches.size > 0
      );
    },

    close() {
      closing.abort();
      for (const upload of uploads.values())
        upload.fail(new FileError('EIO', 'the connection closed'));
      for (const stop of watches.values()) stop();
      watches.clear();
    },
  };
}

function encodeContent(content: Buffer, asked: 'utf8' | 'base64' | undefined): object {
  const text = isUtf8(content);
  if (asked === 'utf8' && !text)
    throw new FileError('EINVAL', 'the content is not UTF-8 text; read it as base64');
  const encoding = asked ?? (text ? 'utf8' : 'base64');
  return { content: content.toString(encoding), encoding, size: content.length };
}

const rfc3339 = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/;

function parseTime(text: string): Date {
  const time = new Date(text);
  if (!rfc3339.test(text) || Number.isNaN(time.getTime()))
    throw new FileError('EINVAL', 'mtime is not an RFC 3339 time');
  return time;
}
