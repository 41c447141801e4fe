// The Postgres protocol by hand, for what no driver would send.
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { connect as connectTls, type TLSSocket } from 'node:tls';

export interface Message {
  type: string;
  body: Buffer;
}

export interface Wire {
  socket: Socket;
  send(bytes: Buffer): void;
  /** One byte, as the answer to an SSLRequest. */
  byte(): Promise<string>;
  /** The next message; `undefined` when the server closes. */
  message(): Promise<Message | undefined>;
  /** Messages up to and including the first of `type`, or to the end. */
  until(type: string): Promise<Message[]>;
  close(): void;
}

const int32 = (value: number) => {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32BE(value);
  return bytes;
};
export const cString = (text: string) => Buffer.from(`${text}\0`);
/** A packet without a type: start-up and its kin. */
export const packet = (...parts: Buffer[]) => {
  const body = Buffer.concat(parts);
  return Buffer.concat([int32(body.length + 4), body]);
};
export const message = (type: string, ...parts: Buffer[]) =>
  Buffer.concat([Buffer.from(type), packet(...parts)]);

export const sslRequest = packet(int32(80877103));
export const gssEncRequest = packet(int32(80877104));
export const cancelRequest = (processId: number, secret: Buffer) =>
  packet(int32(80877102), int32(processId), secret);
export const startup = (parameters: Record<string, string>, version = 0x30000) =>
  packet(
    int32(version),
    ...Object.entries(parameters).flatMap(([name, value]) => [cString(name), cString(value)]),
    Buffer.of(0),
  );
export const query = (text: string) => message('Q', cString(text));

/** The value of a field of an ErrorResponse: `C` is its SQLSTATE. */
export function errorField({ body }: Message, field: string): string | undefined {
  const fields = body.toString('utf8').split('\0');
  return fields.find((each) => each.startsWith(field))?.slice(1);
}

export async function dial(target: { host: string; port: number }): Promise<Wire> {
  const socket = connect({ ...target, noDelay: true });
  await once(socket, 'connect');
  return wireOf(socket);
}

/** Encrypts; with `direct`, without asking first. */
export async function dialTls(
  target: { host: string; port: number },
  options: { direct?: boolean; protocols?: string[] } = {},
): Promise<Wire & { socket: TLSSocket }> {
  const plain = await dial(target);
  if (!options.direct) {
    plain.send(sslRequest);
    if ((await plain.byte()) !== 'S') throw new Error('encryption refused');
  }
  plain.socket.removeAllListeners('data');
  const socket = connectTls({
    socket: plain.socket,
    rejectUnauthorized: false,
    ...(options.protocols ? { ALPNProtocols: options.protocols } : {}),
  });
  await once(socket, 'secureConnect');
  return wireOf(socket) as Wire & { socket: TLSSocket };
}

function wireOf(socket: Socket): Wire {
  let bytes: Buffer = Buffer.alloc(0);
  let isClosed = false;
  let wake = () => {};
  socket.on('data', (chunk: Buffer) => {
    bytes = Buffer.concat([bytes, chunk]);
    wake();
  });
  socket.on('error', () => {});
  socket.on('close', () => {
    isClosed = true;
    wake();
  });
  socket.on('end', () => {
    isClosed = true;
    wake();
  });
  const has = async (length: number): Promise<boolean> => {
    while (bytes.length < length && !isClosed)
      await new Promise<void>((done) => {
        wake = done;
      });
    return bytes.length >= length;
  };
  const take = (length: number) => {
    const taken = bytes.subarray(0, length);
    bytes = bytes.subarray(length);
    return taken;
  };
  const next = async (): Promise<Message | undefined> => {
    if (!(await has(5))) return undefined;
    const length = bytes.readInt32BE(1);
    if (!(await has(length + 1))) return undefined;
    const whole = take(length + 1);
    return { type: String.fromCharCode(whole[0]!), body: whole.subarray(5) };
  };
  return {
    socket,
    send: (data) => void socket.write(data),
    async byte() {
      return (await has(1)) ? take(1).toString('latin1') : '';
    },
    message: next,
    async until(type) {
      const messages: Message[] = [];
      for (let each = await next(); each; each = await next()) {
        messages.push(each);
        if (each.type === type) break;
      }
      return messages;
    },
    close: () => socket.destroy(),
  };
}
