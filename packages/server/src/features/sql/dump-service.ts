// Dumps with the real pg_dump, built to WebAssembly and so the same everywhere, in a child process
// that is bounded in time and size and ends with its client.
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { connect, type Socket } from 'node:net';
import { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import type { Engine, Lease } from '../../engine/engine.ts';
import type { Sessions } from '../../engine/sessions.ts';
import { internal, rateLimited, unprocessable } from '../../kernel/app-error.ts';
import type { Logger } from '../../kernel/logger.ts';
import { JsonBytes } from '../../kernel/route.ts';
import { type DumpJob, dumpExit } from './dump-text.ts';
import { rolesOfGrants } from './store.ts';

export interface DumpLimits {
  timeoutMs: number;
  bytes: number;
  /** Dumps at once; each is a process of its own. */
  concurrency: number;
  /** Dumps that wait for one of those; more are turned away. */
  waiting: number;
}

export interface DumpService {
  dump(call: { databaseId: string; ddlOnly: boolean; signal: AbortSignal }): Promise<JsonBytes>;
}

/** Schemas of our own: never a customer's business. */
const ownSchemas = ['coppice', 'fs', 'auth'];
const childPath = fileURLToPath(new URL('dump-child.ts', import.meta.url));
const childHeapMb = 512;

export function createDumpService(deps: {
  engine: Pick<Engine, 'wake'>;
  sessions: Sessions;
  logger: Logger;
  limits: DumpLimits;
}): DumpService {
  const { engine, sessions, logger, limits } = deps;
  let running = 0;
  const waiting: (() => void)[] = [];

  async function takeTurn(): Promise<void> {
    if (running < limits.concurrency) {
      running++;
      return;
    }
    if (waiting.length >= limits.waiting)
      throw rateLimited('too many dumps at once; try again in a moment', 5);
    await new Promise<void>((resolve) => waiting.push(resolve));
  }

  function passTurn(): void {
    const next = waiting.shift();
    if (next) next();
    else running--;
  }

  const tooLarge = () =>
    unprocessable(
      `the dump is larger than ${Math.floor(limits.bytes / 1024 / 1024)} MiB, the limit over HTTP: ` +
        'use pg_dump with the connection string, or ddl_only',
    );

  async function run(lease: Lease, job: DumpJob, signal: AbortSignal): Promise<JsonBytes> {
    const socket = await openSocket(lease);
    const child = spawn(
      process.execPath,
      [`--max-old-space-size=${childHeapMb}`, childPath, JSON.stringify(job)],
      { stdio: [socket, 'pipe', 'pipe'], env: {} },
    );
    // The child has its own copy of the descriptor.
    socket.destroy();
    const chunks: Buffer[] = [];
    let bytes = 0;
    let complaint = '';
    let reason: 'timeout' | 'client_gone' | 'too_large' | 'lost' | undefined;
    const end = (why: typeof reason) => {
      reason ??= why;
      child.kill('SIGKILL');
    };
    const timer = setTimeout(() => end('timeout'), limits.timeoutMs);
    const onAbort = () => end('client_gone');
    const onLost = () => end('lost');
    signal.addEventListener('abort', onAbort);
    lease.signal.addEventListener('abort', onLost);
    if (signal.aborted) onAbort();
    child.stdout?.on('data', (chunk: Buffer) => {
      chunks.push(chunk);
      bytes += chunk.length;
      if (bytes > limits.bytes) end('too_large');
    });
    child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      complaint = (complaint + text).slice(0, 8192);
    });
    const code = await new Promise<number | null>((resolve, reject) => {
      child.once('error', reject);
      child.once('close', resolve);
    }).finally(() => {
      clearTimeout(timer);
      signal.removeEventListener('abort', onAbort);
      lease.signal.removeEventListener('abort', onLost);
    });

    if (reason === 'too_large' || code === dumpExit.tooLarge) throw tooLarge();
    if (reason === 'timeout')
      throw unprocessable(
        `the dump took longer than ${limits.timeoutMs / 1000} s, the limit over HTTP: ` +
          'use pg_dump with the connection string, or ddl_only',
      );
    if (reason) throw unprocessable('the dump was ended: the database or its client went away');
    if (code !== 0) {
      logger.error({ code, complaint }, 'pg_dump failed');
      const said = /pg_dump: error: [\s\S]*/.exec(complaint)?.[0];
      throw said ? unprocessable(said) : internal('pg_dump failed', new Error(complaint));
    }
    return new JsonBytes(
      chunks.length === 1 ? chunks[0]! : Readable.from(chunks, { objectMode: false }),
    );
  }

  return {
    async dump({ databaseId, ddlOnly, signal }) {
      await takeTurn();
      try {
        signal.throwIfAborted();
        const roles = await sessions.use(databaseId, { role: 'postgres', signal }, rolesOfGrants);
        const restrictKey = randomBytes(16).toString('hex');
        const job: DumpJob = {
          args: [
            '--no-owner',
            '--rows-per-insert=500',
            `--restrict-key=${restrictKey}`,
            ...ownSchemas.map((schema) => `--exclude-schema=${schema}`),
            ...(ddlOnly ? ['--schema-only'] : []),
          ],
          restrictKey,
          roles,
          limitBytes: limits.bytes,
        };
        const lease = await engine.wake(databaseId);
        try {
          return await run(lease, job, signal);
        } finally {
          lease.release();
        }
      } finally {
        passTurn();
      }
    },
  };
}

function openSocket({ socketDirectory, port }: Lease): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect({ path: `${socketDirectory}/.s.PGSQL.${port}` });
    socket.once('error', reject);
    socket.once('connect', () => {
      socket.off('error', reject);
      resolve(socket);
    });
  });
}
