// The way out of one sandbox: an HTTP proxy on a Unix socket that appears inside as
// /run/egress.sock. TLS goes through it untouched (CONNECT); plain HTTP is forwarded request by
// request, so that every hop of a redirect is checked again.
//
// On disk: <directory>/egress.sock, from the moment a program with an allowlist is loaded.
import { chmod, chown } from 'node:fs/promises';
import {
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  request,
  type Server,
  type ServerResponse,
} from 'node:http';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import {
  type AddressRules,
  covers,
  parseTarget,
  RefusedTarget,
  resolveTarget,
  type Target,
} from './network-rules.ts';

export interface Egress {
  /** False where sandboxes have the machine's own network (no bubblewrap). */
  readonly enabled: boolean;
  /** Lets out what the allowlist covers, from now on. */
  open(allowlist: readonly string[]): Promise<void>;
  close(): Promise<void>;
}

export interface EgressOptions {
  directory: string;
  owner: { uid: number; gid: number } | undefined;
  privateAllowed: readonly string[];
}

const connectTimeoutMs = 10_000;
const idleTimeoutMs = 60_000;
const maxConnections = 64;
const hopByHop = new Set([
  'connection',
  'proxy-connection',
  'keep-alive',
  'proxy-authorization',
  'proxy-authenticate',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);

export const closedEgress: Egress = {
  enabled: false,
  open: async () => {},
  close: async () => {},
};

export function createEgress(options: EgressOptions): Egress {
  const rules: AddressRules = {
    privateAllowed: options.privateAllowed,
    timeoutMs: connectTimeoutMs,
  };
  const sockets = new Set<Duplex>();
  let allowlist: readonly string[] = [];
  let server: Server | undefined;

  const keep = <S extends Duplex>(socket: S): S => {
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
    socket.on('error', () => socket.destroy());
    return socket;
  };

  /** Where to connect for a target; throws a `RefusedTarget` for what is not allowed. */
  async function admit(target: Target | undefined): Promise<Target> {
    if (!target) throw new RefusedTarget('not a host and port');
    if (!allowlist.some((entry) => covers(entry, target)))
      throw new RefusedTarget(`${target.host}:${target.port} is not in the network_allowlist`);
    return { host: await resolveTarget(target, rules), port: target.port };
  }

  async function tunnel(message: IncomingMessage, client: Duplex, head: Buffer): Promise<void> {
    keep(client);
    try {
      const upstream = keep(await dial(await admit(parseTarget(message.url ?? ''))));
      client.write('HTTP/1.1 200 Connection established\r\n\r\n');
      upstream.write(head);
      upstream.setTimeout(idleTimeoutMs, () => upstream.destroy());
      client.on('close', () => upstream.destroy());
      upstream.on('close', () => client.destroy());
      client.pipe(upstream).pipe(client);
    } catch (error) {
      client.end(`HTTP/1.1 ${statusOf(error)}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n`);
    }
  }

  async function forward(message: IncomingMessage, answer: ServerResponse): Promise<void> {
    try {
      const url = URL.canParse(message.url ?? '') ? new URL(message.url!) : undefined;
      if (url?.protocol !== 'http:') throw new RefusedTarget('only http:// is forwarded');
      const target = await admit(parseTarget(`${url.hostname}:${url.port || 80}`));
      const upstream = request({
        host: target.host,
        port: target.port,
        method: message.method,
        path: `${url.pathname}${url.search}`,
        headers: { ...endToEnd(message.headers), host: url.host },
        timeout: idleTimeoutMs,
        agent: false,
      });
      upstream.on('timeout', () => upstream.destroy());
      upstream.on('error', () => answer.destroy());
      answer.on('close', () => upstream.destroy());
      upstream.on('response', (reply) => {
        answer.writeHead(reply.statusCode ?? 502, endToEnd(reply.headers));
        reply.on('error', () => answer.destroy());
        reply.pipe(answer);
      });
      message.pipe(upstream);
    } catch (error) {
      answer.writeHead(Number.parseInt(statusOf(error), 10));
      answer.end(error instanceof RefusedTarget ? error.message : undefined);
    }
  }

  return {
    enabled: true,
    async open(entries) {
      allowlist = entries;
      if (server) return;
      server = createServer(
        { requestTimeout: 0 },
        (message, answer) => void forward(message, answer),
      );
      server.maxConnections = maxConnections;
      server.on('connection', keep);
      server.on('connect', (message, client, head) => void tunnel(message, client, head));
      const path = join(options.directory, 'egress.sock');
      await new Promise<void>((resolve, reject) => {
        server!.once('error', reject);
        server!.listen(path, resolve);
      });
      server.unref();
      if (options.owner) await chown(path, options.owner.uid, options.owner.gid);
      await chmod(path, 0o600);
    },
    async close() {
      allowlist = [];
      server?.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}

function dial({ host, port }: Target): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host, port, timeout: connectTimeoutMs });
    socket.once('timeout', () => socket.destroy(new Error('no answer in time')));
    socket.once('error', reject);
    socket.once('connect', () => {
      socket.setTimeout(0);
      resolve(socket);
    });
  });
}

function endToEnd(headers: IncomingHttpHeaders): IncomingHttpHeaders {
  const named = String(headers.connection ?? '')
    .toLowerCase()
    .split(/\s*,\s*/);
  return Object.fromEntries(
    Object.entries(headers).filter(([name]) => !hopByHop.has(name) && !named.includes(name)),
  );
}

const statusOf = (error: unknown) =>
  error instanceof RefusedTarget ? '403 Forbidden' : '502 Bad Gateway';
