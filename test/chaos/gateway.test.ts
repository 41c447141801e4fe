// The Postgres port under storms, abrupt ends and nonsense: it neither falls over nor grows, and no
// connection is left on the server behind it.
import { readFileSync } from 'node:fs';
import { connect as connectSocket } from 'node:net';
import { TLSSocket } from 'node:tls';
import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { randomFrom, seed, sizeOf, timeLimitMs } from '../../scripts/soak-sizes.ts';
import type { CreatedDatabase } from '../support/api.ts';
import { connect } from '../support/postgres-client.ts';
import { type RunningService, startService } from '../support/service.ts';
import { cString, dial, dialTls, message, query, startup, type Wire } from '../support/wire.ts';

const connects = sizeOf('connects');
const abruptEnds = sizeOf('abrupt-ends');
const packets = sizeOf('packets');
const timeoutMs = timeLimitMs(60_000);

let service: RunningService;
let database: CreatedDatabase;
let watcher: pg.Client;

beforeAll(async () => {
  service = await startService({ flags: ['--failed-login-burst', '1000000'] });
  database = await (await service.api.register()).database();
  watcher = await connect(service.gateway, {
    user: `${database.id}.admin`,
    password: database.admin_password,
  });
});
afterAll(async () => {
  await watcher?.end();
  await service?.stop();
});

const memoryMb = () =>
  Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${service.pid}/status`, 'utf8'))![1]) / 1024;

/** Sessions of clients on the instance besides the watcher's own. */
const sessions = async () => {
  const { rows } = await watcher.query(
    `select count(*)::int as n from pg_stat_activity
      where backend_type = 'client backend' and usename = 'admin' and pid <> pg_backend_pid()`,
  );
  return rows[0].n as number;
};

async function atOnce(total: number, width: number, work: (index: number) => Promise<void>) {
  let next = 0;
  await Promise.all(
    Array.from({ length: width }, async () => {
      for (let index = next++; index < total; index = next++) await work(index);
    }),
  );
}

async function enter(wire: Wire): Promise<void> {
  wire.send(startup({ user: `${database.id}.admin`, database: 'postgres' }));
  await wire.until('R');
  wire.send(message('p', cString(database.admin_password)));
  const last = (await wire.until('Z')).at(-1);
  if (last?.type !== 'Z') throw new Error('not let in');
}

test(
  'connects and disconnects',
  async () => {
    const round = (count: number) =>
      atOnce(count, 16, async (index) => {
        const wire = await (index % 4 === 0 ? dialTls(service.gateway) : dial(service.gateway));
        await enter(wire);
        wire.send(query('select 1'));
        expect((await wire.until('Z')).map(({ type }) => type)).toContain('D');
        if (index % 2 === 0) wire.send(message('X'));
        wire.close();
      });
    await round(Math.min(connects, 1_000));
    const warmMb = memoryMb();
    await round(connects);
    await expect.poll(sessions, { timeout: 20_000 }).toBe(0);
    expect(memoryMb() - warmMb).toBeLessThan(60);
  },
  timeoutMs,
);

test(
  'abrupt ends in mid-query',
  async () => {
    const random = randomFrom(seed);
    const queries = [
      'select pg_sleep(600)',
      'select repeat($$x$$, 1000) from generate_series(1, 100000000)',
      'copy (select i from generate_series(1, 100000000) i) to stdout',
      'begin; create table never (i int); select pg_sleep(600)',
    ];
    const endAbruptly = (count: number) =>
      atOnce(count, 16, async (index) => {
        const wire = await (index % 4 === 0 ? dialTls(service.gateway) : dial(service.gateway));
        await enter(wire);
        wire.send(query(queries[Math.floor(random() * queries.length)]!));
        // Half of them read nothing any more: the server is stopped by back-pressure.
        if (random() < 0.5) wire.socket.pause();
        await new Promise((done) => setTimeout(done, random() * 60));
        if (random() < 0.5 && !(wire.socket instanceof TLSSocket)) wire.socket.resetAndDestroy();
        else wire.close();
      });
    // What streams leave for the collector at first is not growth.
    await endAbruptly(160);
    const warmMb = memoryMb();
    await endAbruptly(abruptEnds);
    await expect.poll(sessions, { timeout: 30_000 }).toBe(0);
    expect(memoryMb() - warmMb).toBeLessThan(60);
  },
  timeoutMs,
);

test(
  `malformed and random start-up packets (seed ${seed})`,
  async () => {
    const random = randomFrom(seed);
    const below = (limit: number) => Math.floor(random() * limit);
    const noise = (length: number) => Buffer.from(Array.from({ length }, () => below(256)));
    const good = startup({ user: `${database.id}.admin`, database: 'postgres' });
    const codes = [0x30000, 0x30002, 0x3ffff, 80877102, 80877103, 80877104, 0x20000, 0];
    const kinds: (() => Buffer)[] = [
      () => noise(below(200)),
      // A TLS handshake that is none.
      () => Buffer.concat([Buffer.of(0x16, 3, below(4)), noise(below(300))]),
      // The right frame around noise.
      () => {
        const body = noise(below(500));
        const head = Buffer.alloc(8);
        head.writeInt32BE(random() < 0.8 ? body.length + 8 : below(2 ** 31), 0);
        head.writeInt32BE(codes[below(codes.length)]!, 4);
        return Buffer.concat([head, body]);
      },
      // A good packet with a few bytes changed, cut, or followed by noise.
      () => {
        const bytes = Buffer.from(good);
        for (let i = 0; i < 1 + below(4); i++) bytes[below(bytes.length)] = below(256);
        return random() < 0.3 ? bytes.subarray(0, below(bytes.length)) : bytes;
      },
      () => Buffer.concat([good, message('p', noise(below(100)))]),
      () => Buffer.concat([good, noise(below(200))]),
      () => Buffer.from('GET / HTTP/1.1\r\nHost: x\r\n\r\n'),
      () =>
        startup({ user: `${database.id}.${noise(20).toString('latin1').replaceAll('\0', '')}` }),
    ];
    const throwAt = (count: number) =>
      atOnce(count, 32, async () => {
        const bytes = kinds[below(kinds.length)]!();
        const patience = 2 + below(8);
        await new Promise<void>((done) => {
          const socket = connectSocket(service.gateway);
          socket.on('error', () => {});
          socket.once('close', () => done());
          socket.resume();
          socket.once('connect', () => {
            const cut = below(bytes.length + 1);
            socket.write(bytes.subarray(0, cut));
            socket.write(bytes.subarray(cut));
            setTimeout(() => socket.destroy(), patience);
          });
        });
      });
    await throwAt(Math.min(packets, 2_000));
    const warmMb = memoryMb();
    await throwAt(packets);
    expect(memoryMb() - warmMb).toBeLessThan(60);
    await expect.poll(sessions, { timeout: 20_000 }).toBe(0);
    expect(await watcher.query('select 1 as still')).toMatchObject({ rows: [{ still: 1 }] });
    expect(service.log()).not.toMatch(/connection failed|thread of the gateway died/);
  },
  timeoutMs,
);
