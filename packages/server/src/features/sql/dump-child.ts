// The child process of one dump: pg_dump (compiled to WebAssembly) against a real server.
//
// Standard input is the socket to the instance, opened by the parent: as descriptor 0 it is a
// blocking one, which pg_dump's synchronous reads and writes need. The job comes as an argument,
// the answer leaves on standard output as the JSON of the HTTP answer, what went wrong on standard
// error. Exit codes: see `dumpExit`.
import { readSync, writeSync } from 'node:fs';
import type { PGlite } from '@electric-sql/pglite';
import { pgDump } from '@electric-sql/pglite-tools/pg_dump';
import { startup } from '../../engine/wire/messages.ts';
import { type DumpJob, dumpExit, renderDump } from './dump-text.ts';

const socket = 0;
const job = JSON.parse(process.argv[2]!) as DumpJob;
/** Rows arrive as text about as long as the SQL they become. */
let budgetBytes = job.limitBytes;

class TooLarge extends Error {}

function readExact(length: number): Buffer {
  const bytes = Buffer.allocUnsafe(length);
  for (let at = 0; at < length; ) {
    const read = readSync(socket, bytes, at, length - at, null);
    if (read === 0) throw new Error('server closed the connection unexpectedly');
    at += read;
  }
  return bytes;
}

function writeAll(bytes: Uint8Array): void {
  for (let at = 0; at < bytes.length; ) at += writeSync(socket, bytes, at);
}

/** Hands on everything up to ReadyForQuery, in one piece: each piece makes the package copy all. */
function answerUntilReady(onRawData: (bytes: Uint8Array) => void): void {
  const answer: Buffer[] = [];
  for (;;) {
    const header = readExact(5);
    const body = readExact(header.readInt32BE(1) - 4);
    budgetBytes -= body.length;
    if (budgetBytes < 0) throw new TooLarge();
    answer.push(header, body);
    if (header[0] === 0x5a) break;
  }
  onRawData(Buffer.concat(answer));
}

/** The server behind the socket, dressed as what pg_dump's package expects: a PGlite. */
const server = {
  isStarted: false,
  execProtocolRawStream(
    message: Uint8Array,
    { onRawData }: { onRawData: (bytes: Uint8Array) => void },
  ): void {
    if (!server.isStarted) {
      server.isStarted = true;
      writeAll(startup({ user: 'postgres', database: 'postgres', client_encoding: 'UTF8' }));
      answerUntilReady(onRawData);
      return;
    }
    writeAll(message);
    // Query, Sync and FunctionCall (for large objects) are answered up to ReadyForQuery.
    if ([0x51, 0x53, 0x46].includes(message[0]!)) answerUntilReady(onRawData);
  },
  query: async () => ({ rows: [{ search_path: 'public' }] }),
  exec: async () => [],
};

/**
 * The package removes psql's \restrict lines from the whole text, also from lines of customers'
 * data that look like one. This process exists for the one dump, so the method it uses is replaced
 * here; `renderDump` removes exactly the two lines that pg_dump wrote.
 */
function keepLinesOfData(): void {
  const replace = String.prototype.replace;
  String.prototype.replace = function (this: string, ...args: unknown[]): string {
    const [pattern] = args;
    if (pattern instanceof RegExp && pattern.source.includes('restrict')) return String(this);
    return Reflect.apply(replace, this, args) as string;
  };
}

try {
  keepLinesOfData();
  const file = await pgDump({ pg: server as unknown as PGlite, args: job.args });
  for (const chunk of renderDump(Buffer.from(await file.arrayBuffer()), job)) {
    if (!process.stdout.write(chunk))
      await new Promise((resolve) => process.stdout.once('drain', resolve));
  }
  process.exitCode = 0;
} catch (error) {
  process.stderr.write(String((error as Error).message));
  process.exitCode = error instanceof TooLarge ? dumpExit.tooLarge : dumpExit.failed;
}
