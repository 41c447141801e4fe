// A client's or a server's socket while messages are read one by one, before bytes just flow.
import type { Socket } from 'node:net';
import { ProtocolViolation } from './protocol.ts';

/** The other side closed the connection or lost it. */
export class PeerGone extends Error {
  constructor(cause?: unknown) {
    super('the other side closed the connection', { cause });
    this.name = 'PeerGone';
  }
}

export interface Channel {
  readonly socket: Socket;
  /** The first `length` bytes that were not taken yet, left in place. */
  peek(length: number): Promise<Buffer>;
  take(length: number): Promise<Buffer>;
  /** A message of the regular form: type, length, body. */
  takeMessage(maxBytes: number): Promise<{ type: string; body: Buffer; whole: Buffer }>;
  /** How many bytes have arrived and were not taken. */
  readonly buffered: number;
  /** Ends the reading by messages and gives back what was read too much. */
  release(): Buffer;
}

export function createChannel(socket: Socket): Channel {
  let bytes: Buffer = Buffer.alloc(0);
  let wanted: { length: number; done: () => void; fail: (error: Error) => void } | undefined;
  let failure: Error | undefined;

  function pull(): void {
    for (let chunk = socket.read(); chunk !== null; chunk = socket.read())
      bytes = bytes.length === 0 ? chunk : Buffer.concat([bytes, chunk]);
  }
  function onReadable(): void {
    // What nobody waits for stays in the socket: a client cannot fill our memory.
    if (!wanted) return;
    pull();
    if (bytes.length < wanted.length) return;
    wanted.done();
    wanted = undefined;
  }
  function onGone(error?: Error): void {
    failure ??= new PeerGone(error);
    wanted?.fail(failure);
    wanted = undefined;
  }
  const onEnd = () => onGone();
  const onClose = () => onGone();
  socket.on('readable', onReadable);
  socket.on('error', onGone);
  socket.on('end', onEnd);
  socket.on('close', onClose);

  async function peek(length: number): Promise<Buffer> {
    if (bytes.length < length) pull();
    if (bytes.length < length) {
      if (failure) throw failure;
      await new Promise<void>((done, fail) => {
        wanted = { length, done, fail };
      });
    }
    return bytes.subarray(0, length);
  }
  async function take(length: number): Promise<Buffer> {
    const taken = await peek(length);
    bytes = bytes.subarray(length);
    return taken;
  }

  return {
    socket,
    peek,
    take,
    get buffered() {
      return bytes.length + socket.readableLength;
    },
    async takeMessage(maxBytes) {
      const length = (await peek(5)).readInt32BE(1);
      if (length < 4 || length > maxBytes) throw new ProtocolViolation('invalid message length');
      const whole = await take(length + 1);
      return { type: String.fromCharCode(whole[0]!), body: whole.subarray(5), whole };
    },
    release() {
      socket.off('readable', onReadable);
      socket.off('error', onGone);
      socket.off('end', onEnd);
      socket.off('close', onClose);
      pull();
      const rest = bytes;
      bytes = Buffer.alloc(0);
      return rest;
    },
  };
}

/** Sends what is still to be sent and closes; by force when the other side does not take it in time. */
export function endSoon(socket: Socket, limitMs: number): void {
  socket.destroySoon();
  if (socket.closed) return;
  const timer = setTimeout(() => socket.destroy(), limitMs).unref();
  // A timer left behind would keep the socket and its buffers for as long as it runs.
  socket.once('close', () => clearTimeout(timer));
}
