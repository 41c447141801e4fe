// One connection, from its first message to its end:
//
//   waiting ──first message──► authenticating ──► open ──► closed
//
// It must authenticate within 10 s. Nothing that a client sends makes more than its own connection
// end. It holds no database awake: only operations under way do.
import { fileCloseCodes } from '@coppice/contract';
import type { WebSocket } from 'ws';
import { FileError, type Files } from '../../kernel/files.ts';
import type { Logger } from '../../kernel/logger.ts';
import { type Admission, LoginError, type Logins } from '../../kernel/login.ts';
import { Secret } from '../../kernel/secret.ts';
import { createOutbox } from './outbox.ts';
import { ProtocolError, parseEnvelope, parseRequest, type RequestId } from './requests.ts';
import { createSession, type Session, type SessionLimits } from './session.ts';

export interface ConnectionLimits extends SessionLimits {
  authenticationMs: number;
  /** A connection with nothing under way is closed after this long. */
  idleMs: number;
  pingMs: number;
}

export interface ConnectionDeps {
  files: Files;
  logins: Logins;
  logger: Logger;
  limits: ConnectionLimits;
  /** Counts a connection of a database in; undefined if it has too many. */
  enter(databaseId: string): (() => void) | undefined;
}

export function serveConnection(
  socket: WebSocket,
  peer: { databaseId: string; address: string; onAdmitted(): void },
  deps: ConnectionDeps,
): void {
  const { limits, logger } = deps;
  const outbox = createOutbox(socket);
  const releases: (() => void)[] = [];
  /** What came before the answer to `auth`. */
  const early: { bytes: Buffer; isBinary: boolean }[] = [];
  let state: 'waiting' | 'authenticating' | 'open' | 'closed' = 'waiting';
  let session: Session | undefined;
  let heardAt = Date.now();
  let usedAt = Date.now();

  function close(code: number, reason: string): void {
    if (state === 'closed') return;
    state = 'closed';
    for (const release of releases.splice(0).reverse()) release();
    socket.resume();
    socket.close(code, reason);
    // A client that does not answer the close frame is not waited for.
    setTimeout(() => socket.terminate(), 2_000).unref();
  }

  function fail(id: RequestId | null, error: FileError, code: number): void {
    const { message } = error;
    const reply = JSON.stringify({ id, ok: false, error: { code: error.code, message } });
    outbox.send(reply).catch(() => {});
    close(code, error.code);
  }

  socket.on('error', () => {}); // 'close' follows
  socket.on('close', () => close(1000, ''));
  socket.on('pong', () => {
    heardAt = Date.now();
  });
  socket.on('message', (data, isBinary) => {
    heardAt = usedAt = Date.now();
    const bytes = data as Buffer;
    try {
      if (state === 'waiting') {
        state = 'authenticating';
        void authenticate(bytes, isBinary);
      } else if (state === 'authenticating') {
        early.push({ bytes, isBinary });
      } else if (state === 'open') receive(bytes, isBinary);
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      fail(null, new FileError('EPROTO', error.message), fileCloseCodes.protocol);
    }
  });

  function receive(bytes: Buffer, isBinary: boolean): void {
    if (isBinary) session?.binary(bytes);
    else session?.text(bytes.toString('utf8'));
  }

  const deadline = setTimeout(() => {
    const error = new FileError('EAUTH', 'no authentication in time');
    fail(null, error, fileCloseCodes.authentication);
  }, limits.authenticationMs);
  releases.push(() => clearTimeout(deadline));

  async function authenticate(bytes: Buffer, isBinary: boolean): Promise<void> {
    let id: RequestId | null = null;
    try {
      if (isBinary) throw new ProtocolError('authenticate first');
      const envelope = parseEnvelope(bytes.toString('utf8'));
      id = envelope.id;
      const admission = await admit(id, envelope.message);
      if (state === 'authenticating') open(id, admission);
    } catch (error) {
      if (state === 'closed') return;
      if (error instanceof ProtocolError)
        fail(id, new FileError('EPROTO', error.message), fileCloseCodes.protocol);
      else if (error instanceof TooManyConnections)
        fail(id, new FileError('EIO', error.message), fileCloseCodes.tooMany);
      else fail(id, refusal(error), fileCloseCodes.authentication);
    }
  }

  function admit(id: RequestId, message: Record<string, unknown>): Promise<Admission> {
    if (message.op !== 'auth') throw new FileError('EAUTH', 'authenticate first');
    const { username, password } = parseRequest(id, message).body as {
      username: string;
      password: string;
    };
    // `<database>.<role>`, or with a colon.
    const [, databaseId, role] = /^([^.:]+)[.:](.+)$/s.exec(username) ?? [];
    if (databaseId !== peer.databaseId || role === undefined || role.includes('\0'))
      throw new FileError('EAUTH', 'username must be <database id>.<role> of this database');
    return deps.logins.admit({
      databaseId,
      role,
      secret: new Secret(password),
      address: peer.address,
    });
  }

  function refusal(error: unknown): FileError {
    if (error instanceof FileError) return error;
    if (error instanceof LoginError && error.reason !== 'unavailable')
      return new FileError('EAUTH', error.message);
    logger.warn({ err: error, databaseId: peer.databaseId }, 'files: could not authenticate');
    return new FileError('EIO', 'the database cannot be reached now; try again');
  }

  function open(id: RequestId, admission: Admission): void {
    if (!admission.scopes.has('fs:read') && !admission.scopes.has('fs:write'))
      throw new FileError('EACCES', 'this credential has no scope for files');
    const leave = deps.enter(admission.databaseId);
    if (!leave) throw new TooManyConnections('too many connections to the files of this database');
    releases.push(leave);
    clearTimeout(deadline);
    peer.onAdmitted();

    const opened = createSession({ ...deps, admission, outbox, socket });
    session = opened;
    releases.push(() => opened.close());

    const onRevoked = () => close(fileCloseCodes.revoked, 'the credential or database is gone');
    admission.signal.addEventListener('abort', onRevoked);
    releases.push(() => admission.signal.removeEventListener('abort', onRevoked));

    const keepAlive = setInterval(() => {
      const now = Date.now();
      if (opened.busy) usedAt = now;
      if (now - usedAt > limits.idleMs) close(fileCloseCodes.idle, 'idle');
      // While its content is held back, nothing is heard of a client.
      else if (now - heardAt > 3 * limits.pingMs && !socket.isPaused) socket.terminate();
      else socket.ping();
    }, limits.pingMs);
    releases.push(() => clearInterval(keepAlive));

    state = 'open';
    const { databaseId, role, scopes } = admission;
    const data = { database_id: databaseId, role, scopes: [...scopes] };
    outbox.send(JSON.stringify({ id, ok: true, data })).catch(() => {});
    for (const message of early.splice(0)) receive(message.bytes, message.isBinary);
    if (admission.signal.aborted) onRevoked();
  }
}

class TooManyConnections extends Error {}
