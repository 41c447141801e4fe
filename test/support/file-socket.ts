// The files' WebSocket without an SDK: messages as they are.
import { createHash } from 'node:crypto';
import { WebSocket } from 'ws';

export interface FileMessage {
  id?: number | string | null;
  ok?: boolean;
  data?: any;
  error?: { code: string; message: string };
  stream?: number;
  received?: number;
  event?: { type: string; path: string; from?: string };
  /** Of a binary frame. */
  bytes?: Buffer;
}

export interface FileSocket {
  send(message: unknown): void;
  /** Content of a stream. */
  frame(stream: number | bigint, bytes: Uint8Array): void;
  sendRaw(data: string | Buffer): void;
  /** The next message that `wanted` says yes to; the others are dropped. */
  next(wanted?: (message: FileMessage) => boolean): Promise<FileMessage>;
  /** Messages that came and were not taken by `next`. */
  readonly waiting: number;
  /** Sends and waits for the reply of the same id. */
  ask(message: { op: string; [field: string]: unknown }): Promise<FileMessage>;
  upload(
    target: { op: string; path: string; [field: string]: unknown },
    content: Uint8Array,
  ): Promise<FileMessage>;
  download(target: { path: string; [field: string]: unknown }): Promise<Buffer>;
  readonly closed: Promise<{ code: number; reason: string }>;
  close(): void;
  terminate(): void;
  readonly socket: WebSocket;
}

export async function openFileSocket(url: string): Promise<FileSocket> {
  const socket = new WebSocket(url, { perMessageDeflate: false });
  const inbox: FileMessage[] = [];
  let wake = () => {};
  const closed = new Promise<{ code: number; reason: string }>((resolve) => {
    socket.on('close', (code, reason) => {
      resolve({ code, reason: reason.toString() });
      wake();
    });
  });
  socket.on('message', (data: Buffer, isBinary) => {
    if (isBinary) inbox.push({ stream: Number(data.readBigUInt64BE()), bytes: data.subarray(8) });
    else inbox.push(JSON.parse(data.toString()) as FileMessage);
    wake();
  });
  await new Promise<void>((resolve, reject) => {
    socket.once('open', resolve);
    socket.once('error', reject);
  });
  socket.on('error', () => {});

  let lastId = 0;
  const self: FileSocket = {
    socket,
    closed,
    get waiting() {
      return inbox.length;
    },
    send: (message) => socket.send(JSON.stringify(message)),
    sendRaw: (data) => socket.send(data),
    frame(stream, bytes) {
      const header = Buffer.alloc(8);
      header.writeBigUInt64BE(BigInt(stream));
      socket.send(Buffer.concat([header, bytes]));
    },
    async next(wanted = () => true) {
      for (;;) {
        for (let message = inbox.shift(); message; message = inbox.shift())
          if (wanted(message)) return message;
        if (socket.readyState >= WebSocket.CLOSING) throw new Error('the connection closed');
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
    },
    async ask(message) {
      const id = ++lastId;
      self.send({ id, ...message });
      return self.next((reply) => reply.id === id && reply.ok !== undefined);
    },
    async upload(target, content) {
      const started = await self.ask({ ...target, stream: true });
      if (!started.ok) return started;
      for (let at = 0; at < content.length; at += 200_000) {
        self.frame(started.data.stream, content.subarray(at, at + 200_000));
        while (socket.bufferedAmount > 4_000_000)
          await new Promise((resolve) => setImmediate(resolve));
      }
      return self.ask({ op: 'end', stream: started.data.stream, sha256: sha256(content) });
    },
    async download(target) {
      const { data, error } = await self.ask({ op: 'read', stream: true, ...target });
      if (error) throw new Error(error.code);
      const pieces: Buffer[] = [];
      for (;;) {
        const message = await self.next((it) => it.stream === data.stream);
        if (message.bytes) pieces.push(message.bytes);
        else if (message.ok) {
          const content = Buffer.concat(pieces);
          if (message.data.sha256 !== sha256(content)) throw new Error('wrong checksum');
          return content;
        } else throw new Error(message.error?.code);
      }
    },
    close: () => socket.close(),
    terminate: () => socket.terminate(),
  };
  return self;
}

export const sha256 = (content: Uint8Array) => createHash('sha256').update(content).digest('hex');
