import fc from 'fast-check';
import { expect, test } from 'vitest';
import { QueryMeter } from './query-meter.ts';

const message = (type: string, body: string | Buffer = '') => {
  const bytes = Buffer.from(body as string);
  const head = Buffer.alloc(5);
  head.write(type, 'latin1');
  head.writeInt32BE(bytes.length + 4, 1);
  return Buffer.concat([head, bytes]);
};
const query = (text: string) => message('Q', `${text}\0`);
const parse = (name: string, text: string) => message('P', `${name}\0${text}\0\0\0`);
const bind = (statement: string) => message('B', `\0${statement}\0\0\0\0\0\0\0`);
const execute = message('E', '\0\0\0\0\0');
const sync = message('S');
const ready = message('Z', 'I');
const row = message('D', 'x'.repeat(300));
const error = message('E', 'SERROR\0\0');

interface Seen {
  durationMs: number;
  failed: boolean;
  text: string | undefined;
}

function createMeter() {
  const seen: Seen[] = [];
  let nowMs = 0;
  const meter = new QueryMeter(
    (durationMs, failed, text) => seen.push({ durationMs, failed, text }),
    () => nowMs,
  );
  return {
    meter,
    seen,
    client: (...parts: Buffer[]) => feed((b) => meter.fromClient(b, b.length), parts),
    server: (...parts: Buffer[]) => feed((b) => meter.fromServer(b, b.length), parts),
    wait: (ms: number) => {
      nowMs += ms;
    },
  };
}
const feed = (take: (bytes: Buffer) => void, parts: Buffer[]) => take(Buffer.concat(parts));

test('a simple query, from its message to ReadyForQuery', () => {
  const { meter, seen, client, server, wait } = createMeter();
  client(query('select 1'));
  expect(meter.isBusy).toBe(true);
  wait(5);
  server(row, row, message('C', 'SELECT 2\0'), ready);
  expect(seen).toEqual([{ durationMs: 5, failed: false, text: 'select 1' }]);
  expect(meter.isBusy).toBe(false);
});

test('errors count for the unit they belong to', () => {
  const { seen, client, server } = createMeter();
  client(query('select x'), query('select 1'));
  server(error, ready, ready);
  expect(seen.map(({ failed }) => failed)).toEqual([true, false]);
});

test('prepared statements are known by their names; preparing alone is no query', () => {
  const { seen, client, server, wait } = createMeter();
  client(parse('one', 'select $1'), sync);
  server(ready);
  expect(seen).toEqual([]);
  client(bind('one'), execute, sync, bind('one'), execute, sync);
  wait(2);
  server(ready);
  wait(3);
  server(ready);
  client(parse('', 'select 2'), bind(''), execute, sync);
  server(ready);
  expect(seen).toEqual([
    { durationMs: 2, failed: false, text: 'select $1' },
    { durationMs: 3, failed: false, text: 'select $1' },
    { durationMs: 0, failed: false, text: 'select 2' },
  ]);
});

test('a terminate is noticed', () => {
  const { meter, client } = createMeter();
  client(message('X'));
  expect(meter.isTerminated).toBe(true);
});

test('however the bytes are cut, the count is the same and boundaries are known', () => {
  const toServer = Buffer.concat([
    query('select 1'),
    parse('s', 'select $1'),
    bind('s'),
    execute,
    sync,
    query(`select '${'x'.repeat(9_000)}'`),
  ]);
  const toClient = Buffer.concat([row, ready, row, ready, error, ready]);
  const cuts = fc.array(fc.nat(toServer.length), { maxLength: 40 });
  fc.assert(
    fc.property(cuts, cuts, (clientCuts, serverCuts) => {
      const { meter, seen, client, server } = createMeter();
      const pieces = (bytes: Buffer, at: number[]) => {
        const sorted = [0, ...at.map((n) => n % bytes.length).sort((a, b) => a - b), bytes.length];
        return sorted.slice(1).map((end, i) => bytes.subarray(sorted[i], end));
      };
      for (const piece of pieces(toServer, clientCuts)) client(piece);
      let sent = 0;
      const boundaries = new Set([0]);
      for (let at = 0; at < toClient.length; at += 1 + toClient.readInt32BE(at + 1))
        boundaries.add(at);
      boundaries.add(toClient.length);
      for (const piece of pieces(toClient, serverCuts)) {
        server(piece);
        sent += piece.length;
        expect(meter.isServerAtBoundary).toBe(boundaries.has(sent));
      }
      expect(seen.map(({ failed }) => failed)).toEqual([false, false, true]);
    }),
  );
});

test('noise is let through unmeasured', () => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ maxLength: 200 })), (chunks) => {
      const { client, server } = createMeter();
      for (const chunk of chunks) {
        client(Buffer.from(chunk));
        server(Buffer.from(chunk));
      }
    }),
  );
});
