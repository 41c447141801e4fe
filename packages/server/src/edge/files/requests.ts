// What a text message asks for, checked against the contract.
import { type FileOperation, type FileRequest, fileRequests } from '@coppice/contract';
import { Compile, type Validator } from 'typebox/compile';
import { FileError } from '../../kernel/files.ts';

export type RequestId = string | number;

export interface Request<O extends FileOperation = FileOperation> {
  id: RequestId;
  operation: O;
  body: FileRequest<O>;
}

/** A message that is no request at all: the connection cannot go on. */
export class ProtocolError extends Error {}

const validators = new Map<string, Validator>(
  Object.entries(fileRequests).map(([operation, schema]) => [operation, Compile(schema)]),
);

/** Reads the envelope only, so that a reply can name the request whatever is wrong with it. */
export function parseEnvelope(text: string): { id: RequestId; message: Record<string, unknown> } {
  let message: unknown;
  try {
    message = JSON.parse(text);
  } catch {
    throw new ProtocolError('not JSON');
  }
  if (typeof message !== 'object' || message === null || Array.isArray(message))
    throw new ProtocolError('a message is a JSON object');
  const { id, op } = message as { id?: unknown; op?: unknown };
  // An acknowledgement is not answered, so it needs no id.
  if (op === 'ack') return { id: '', message: message as Record<string, unknown> };
  if (typeof id !== 'number' && (typeof id !== 'string' || id.length > 128))
    throw new ProtocolError('a message has an id: a number or a text of at most 128 characters');
  return { id, message: message as Record<string, unknown> };
}

export function parseRequest(id: RequestId, message: Record<string, unknown>): Request {
  const operation = message.op;
  const validator = typeof operation === 'string' ? validators.get(operation) : undefined;
  if (!validator) throw new FileError('EINVAL', 'op: no such operation');
  const body = Object.fromEntries(Object.entries(message).filter(([, value]) => value !== null));
  if (!validator.Check(body)) {
    const [problem] = validator.Errors(body);
    const where = problem?.instancePath.slice(1).replaceAll('/', '.');
    throw new FileError('EINVAL', `${where ? `${where} ` : ''}${problem?.message ?? 'not valid'}`);
  }
  return { id, operation: operation as FileOperation, body: body as FileRequest<FileOperation> };
}

export function decodeContent(content: string, encoding: 'utf8' | 'base64' = 'utf8'): Buffer {
  if (encoding === 'base64') {
    const bytes = Buffer.from(content, 'base64');
    const canonical = bytes.toString('base64').replace(/=+$/, '');
    if (content.replace(/=+$/, '') !== canonical)
      throw new FileError('EINVAL', 'content is not base64');
    return bytes;
  }
  if (!content.isWellFormed()) throw new FileError('EINVAL', 'content is not well-formed Unicode');
  return Buffer.from(content, 'utf8');
}
