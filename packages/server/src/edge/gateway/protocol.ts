// Messages of the Postgres protocol as far as the gateway takes part in it: bytes in, bytes out, no
// sockets. https://www.postgresql.org/docs/18/protocol-message-formats.html

export const sslRequestCode = 80877103;
export const gssEncRequestCode = 80877104;
const cancelRequestCode = 80877102;
const majorVersion = 3;
/** Newest minor version spoken here: 3.2, the one with longer cancel keys. */
export const newestMinorVersion = 2;

/** As in Postgres: MAX_STARTUP_PACKET_LENGTH and the limit of password messages. */
export const maxStartupBytes = 10_000;
export const maxPasswordBytes = 65_536;

export type FirstPacket =
  | { kind: 'ssl' }
  | { kind: 'gssenc' }
  | { kind: 'cancel'; processId: number; secret: Buffer }
  | StartupPacket;

export interface StartupPacket {
  kind: 'startup';
  minorVersion: number;
  /** In the order they came, `user` and `database` included. */
  parameters: Map<string, string>;
  /** Names of protocol options (`_pq_.…`), none of which is known here. */
  protocolOptions: string[];
}

/** Something that is not the Postgres protocol. `sqlState` 08P01 unless the version is at fault. */
export class ProtocolViolation extends Error {
  readonly sqlState: string;

  constructor(message: string, sqlState = '08P01') {
    super(message);
    this.name = 'ProtocolViolation';
    this.sqlState = sqlState;
  }
}

/** `body`: the packet without its four bytes of length. */
export function parseFirstPacket(body: Buffer): FirstPacket {
  if (body.length < 4) throw new ProtocolViolation('invalid length of startup packet');
  const code = body.readInt32BE(0);
  switch (code) {
    case sslRequestCode:
      return { kind: 'ssl' };
    case gssEncRequestCode:
      return { kind: 'gssenc' };
    case cancelRequestCode:
      if (body.length < 12 || body.length > 8 + 256)
        throw new ProtocolViolation('invalid length of cancel request packet');
      return { kind: 'cancel', processId: body.readInt32BE(4), secret: body.subarray(8) };
  }
  const major = code >>> 16;
  const minorVersion = code & 0xffff;
  if (major !== majorVersion)
    throw new ProtocolViolation(
      `unsupported frontend protocol ${major}.${minorVersion}: server supports 3.0 to 3.${newestMinorVersion}`,
      '0A000',
    );
  return { kind: 'startup', minorVersion, ...parseParameters(body.subarray(4)) };
}

function parseParameters(bytes: Buffer): Pick<StartupPacket, 'parameters' | 'protocolOptions'> {
  const parameters = new Map<string, string>();
  const protocolOptions: string[] = [];
  let at = 0;
  const next = () => {
    const end = bytes.indexOf(0, at);
    if (end === -1) throw new ProtocolViolation('invalid startup packet layout: no terminator');
    const text = bytes.toString('utf8', at, end);
    at = end + 1;
    return text;
  };
  for (let name = next(); name !== ''; name = next()) {
    const value = next();
    if (name.startsWith('_pq_.')) protocolOptions.push(name);
    else parameters.set(name, value);
  }
  if (at !== bytes.length)
    throw new ProtocolViolation(
      'invalid startup packet layout: expected terminator as the last byte',
    );
  return { parameters, protocolOptions };
}

/** The text of a password message's body. */
export function parsePassword(body: Buffer): string {
  const end = body.indexOf(0);
  if (end === -1 || end !== body.length - 1) throw new ProtocolViolation('invalid password packet');
  return body.toString('utf8', 0, end);
}

const cString = (text: string) => Buffer.from(`${text}\0`, 'utf8');
const int32 = (value: number) => {
  const bytes = Buffer.allocUnsafe(4);
  bytes.writeInt32BE(value);
  return bytes;
};

function message(type: string, ...parts: Buffer[]): Buffer {
  const length = parts.reduce((sum, part) => sum + part.length, 4);
  return Buffer.concat([Buffer.from(type, 'latin1'), int32(length), ...parts]);
}

export const cleartextPasswordRequest = message('R', int32(3));

export function startupMessage(parameters: ReadonlyMap<string, string>): Buffer {
  const parts = [...parameters].flatMap(([name, value]) => [cString(name), cString(value)]);
  const body = Buffer.concat([int32(majorVersion << 16), ...parts, Buffer.of(0)]);
  return Buffer.concat([int32(body.length + 4), body]);
}

export function cancelRequest(processId: number, secret: Buffer): Buffer {
  return Buffer.concat([
    int32(12 + secret.length),
    int32(cancelRequestCode),
    int32(processId),
    secret,
  ]);
}

/** Says which version will be spoken and which protocol options mean nothing here. */
export function negotiateProtocolVersion({ minorVersion, protocolOptions }: StartupPacket): Buffer {
  const spoken = Math.min(minorVersion, newestMinorVersion);
  return message(
    'v',
    int32((majorVersion << 16) | spoken),
    int32(protocolOptions.length),
    ...protocolOptions.map(cString),
  );
}

export function backendKeyData(processId: number, secret: Buffer): Buffer {
  return message('K', int32(processId), secret);
}

/** A FATAL error, after which the connection ends. */
export function fatalError(sqlState: string, text: string, hint?: string): Buffer {
  const fields: [string, string][] = [
    ['S', 'FATAL'],
    ['V', 'FATAL'],
    ['C', sqlState],
    ['M', text],
  ];
  if (hint !== undefined) fields.push(['H', hint]);
  return message('E', ...fields.map(([code, value]) => cString(code + value)), Buffer.of(0));
}
