// The beginning of a connection, up to its start-up packet or cancel request: encryption is agreed
// on here. https://www.postgresql.org/docs/18/protocol-flow.html#PROTOCOL-FLOW-START-UP
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { type SecureContext, TLSSocket } from 'node:tls';
import { type Channel, createChannel, PeerGone } from './channel.ts';
import {
  type FirstPacket,
  maxStartupBytes,
  ProtocolViolation,
  parseFirstPacket,
} from './protocol.ts';
import { Refusal } from './refusal.ts';

export interface Encryption {
  context: SecureContext;
  required: boolean;
}

export type Greeting = {
  channel: Channel;
  packet: Extract<FirstPacket, { kind: 'startup' | 'cancel' }>;
};

/** The first byte of a TLS handshake record: a client that does not ask before it encrypts. */
const tlsHandshake = 0x16;
const alpnProtocol = 'postgresql';
const yes = Buffer.from('S');
const no = Buffer.from('N');

/** `onChannel` hears through which channel the client can be told why it is refused. */
export async function startUp(
  socket: Socket,
  encryption: Encryption,
  onChannel: (channel: Channel) => void,
): Promise<Greeting> {
  let channel = createChannel(socket);
  onChannel(channel);
  let isEncrypted = false;
  let askedForGss = false;

  async function encrypt(): Promise<TLSSocket> {
    const secured = await encryptSocket(channel, encryption.context);
    channel = createChannel(secured);
    onChannel(channel);
    isEncrypted = true;
    return secured;
  }

  if ((await channel.peek(1))[0] === tlsHandshake) {
    const secured = await encrypt();
    if (secured.alpnProtocol !== alpnProtocol)
      throw new ProtocolViolation(`direct TLS needs the protocol ${alpnProtocol} (ALPN)`);
  }
  for (;;) {
    const packet = parseFirstPacket(await takeFirstPacket(channel));
    switch (packet.kind) {
      case 'ssl':
        if (isEncrypted) throw new ProtocolViolation('this connection is encrypted already');
        // Bytes sent in clear by someone in between must not pass for the client's.
        if (channel.buffered > 0)
          throw new ProtocolViolation('received unencrypted data after SSL request');
        channel.socket.write(yes);
        await encrypt();
        break;
      case 'gssenc':
        if (isEncrypted || askedForGss) throw new ProtocolViolation('unexpected GSSENCRequest');
        askedForGss = true;
        channel.socket.write(no);
        break;
      case 'startup':
        if (encryption.required && !isEncrypted)
          throw new Refusal('28000', 'this server takes encrypted connections only', {
            hint: 'Connect with sslmode=require.',
          });
        return { channel, packet };
      case 'cancel':
        return { channel, packet };
    }
  }
}

async function takeFirstPacket(channel: Channel): Promise<Buffer> {
  const length = (await channel.peek(4)).readInt32BE(0);
  if (length < 8 || length > maxStartupBytes)
    throw new ProtocolViolation('invalid length of startup packet');
  return (await channel.take(length)).subarray(4);
}

async function encryptSocket(channel: Channel, context: SecureContext): Promise<TLSSocket> {
  const { socket } = channel;
  const rest = channel.release();
  if (rest.length > 0) socket.unshift(rest);
  const secured = new TLSSocket(socket, {
    isServer: true,
    secureContext: context,
    ALPNProtocols: [alpnProtocol],
  });
  const closed = new AbortController();
  const onClose = () => closed.abort();
  secured.once('close', onClose);
  try {
    await once(secured, 'secure', { signal: closed.signal });
  } catch (error) {
    secured.destroy();
    throw new PeerGone(error);
  } finally {
    secured.off('close', onClose);
    secured.on('error', () => {});
  }
  return secured;
}
