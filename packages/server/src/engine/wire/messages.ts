// Messages a client sends, as bytes: https://www.postgresql.org/docs/current/protocol-message-formats.html

const protocolVersion = 3 << 16;
const cancelRequestCode = (1234 << 16) | 5678;

/** Type bytes of what the server sends. */
export const backend = {
  authentication: 0x52, // R
  backendKeyData: 0x4b, // K
  bindComplete: 0x32, // 2
  closeComplete: 0x33, // 3
  commandComplete: 0x43, // C
  copyInResponse: 0x47, // G
  copyOutResponse: 0x48, // H
  copyBothResponse: 0x57, // W
  dataRow: 0x44, // D
  emptyQueryResponse: 0x49, // I
  errorResponse: 0x45, // E
  noData: 0x6e, // n
  parameterDescription: 0x74, // t
  parameterStatus: 0x53, // S
  parseComplete: 0x31, // 1
  readyForQuery: 0x5a, // Z
  rowDescription: 0x54, // T
} as const;

export function startup(parameters: Record<string, string>): Buffer {
  const pairs = Object.entries(parameters).map(([name, value]) => `${name}\0${value}\0`);
  const body = Buffer.from(`${pairs.join('')}\0`);
  const bytes = Buffer.allocUnsafe(8 + body.length);
  bytes.writeInt32BE(bytes.length, 0);
  bytes.writeInt32BE(protocolVersion, 4);
  body.copy(bytes, 8);
  return bytes;
}

export function cancelRequest(processId: number, secretKey: number): Buffer {
  const bytes = Buffer.allocUnsafe(16);
  bytes.writeInt32BE(16, 0);
  bytes.writeInt32BE(cancelRequestCode, 4);
  bytes.writeInt32BE(processId, 8);
  bytes.writeInt32BE(secretKey, 12);
  return bytes;
}

/** Simple query: one or more statements. The text must hold no NUL. */
export const query = (text: string): Buffer => withText(0x51, text);

/** Parses one statement as the unnamed one; the server infers parameter types. */
export function parse(text: string): Buffer {
  const length = Buffer.byteLength(text);
  const bytes = Buffer.allocUnsafe(length + 9);
  bytes[0] = 0x50;
  bytes.writeInt32BE(length + 8, 1);
  bytes[5] = 0; // unnamed statement
  bytes.write(text, 6, 'utf8');
  bytes[6 + length] = 0;
  bytes.writeInt16BE(0, 7 + length);
  return bytes;
}

/** Binds the unnamed statement; parameters and results in text form. */
export function bind(values: readonly (string | null)[]): Buffer {
  const sizes = values.map((value) => (value === null ? 0 : Buffer.byteLength(value)));
  const total = sizes.reduce((sum, size) => sum + size + 4, 0);
  const bytes = Buffer.allocUnsafe(5 + 2 + 2 + 2 + total + 2);
  bytes[0] = 0x42;
  bytes.writeInt32BE(bytes.length - 1, 1);
  bytes.writeInt16BE(0, 5); // unnamed portal, unnamed statement
  bytes.writeInt16BE(0, 7); // all parameters in text form
  bytes.writeUInt16BE(values.length, 9);
  let at = 11;
  values.forEach((value, index) => {
    at = bytes.writeInt32BE(value === null ? -1 : sizes[index]!, at);
    if (value !== null) at += bytes.write(value, at, 'utf8');
  });
  bytes.writeInt16BE(0, at); // all results in text form
  return bytes;
}

const fixed = (type: string, body: string) => {
  const bytes = Buffer.alloc(5 + body.length);
  bytes.write(type, 0, 'latin1');
  bytes.writeInt32BE(4 + body.length, 1);
  bytes.write(body, 5, 'latin1');
  return bytes;
};

export const describeStatement = fixed('D', 'S\0');
export const describePortal = fixed('D', 'P\0');
/** Runs the unnamed portal to its end. */
export const execute = fixed('E', '\0\0\0\0\0');
export const sync = fixed('S', '');
export const flush = fixed('H', '');
export const terminate = fixed('X', '');

/** Parse, bind and execute of one statement; a sync must follow. */
export const statement = (text: string, params: readonly (string | null)[] = []): Buffer =>
  Buffer.concat([parse(text), bind(params), execute]);

export const copyFail = (reason: string): Buffer => withText(0x66, reason);

function withText(type: number, text: string, after?: Buffer): Buffer {
  const length = Buffer.byteLength(text);
  const bytes = Buffer.allocUnsafe(length + 6 + (after?.length ?? 0));
  bytes[0] = type;
  bytes.writeInt32BE(length + 5, 1);
  bytes.write(text, 5, 'utf8');
  bytes[5 + length] = 0;
  after?.copy(bytes, 6 + length);
  return bytes;
}

/** Brings a session back to how it started, outside transactions only. */
export const discardAll = query('discard all');

export const queryThenDiscard = (text: string): Buffer => withText(0x51, text, discardAll);
