// The Postgres port, byte by byte: versions, encryption, cancelling, limits, waking, endings.
import { X509Certificate } from 'node:crypto';
import { existsSync, readFileSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Account, CreatedDatabase } from '../support/api.ts';
import { connect, ended, loginResult } from '../support/postgres-client.ts';
import { type RunningService, startService } from '../support/service.ts';
import {
  cancelRequest,
  cString,
  dial,
  dialTls,
  errorField,
  gssEncRequest,
  type Message,
  message,
  query,
  sslRequest,
  startup,
  type Wire,
} from '../support/wire.ts';

let service: RunningService;
let account: Account;
let database: CreatedDatabase;

beforeAll(async () => {
  service = await startService({
    flags: ['--gateway-connections', '12', '--gateway-idle-seconds', '3', '--idle-seconds', '2'],
  });
  account = await service.api.register();
  database = await account.database();
});
afterAll(() => service?.stop());

const user = () => `${database.id}.admin`;
const parameters = () => ({ user: user(), database: 'postgres' });
const password = () => message('p', cString(database.admin_password));
const admin = (ssl = false) =>
  connect(service.gateway, { user: user(), password: database.admin_password, ssl });

/** Logs in; answers the messages up to ReadyForQuery. */
async function enter(wire: Wire, version = 0x30000): Promise<Message[]> {
  wire.send(startup(parameters(), version));
  const asked = await wire.until('R');
  wire.send(password());
  return [...asked, ...(await wire.until('Z'))];
}
const keyOf = (messages: Message[]) => {
  const { body } = messages.find(({ type }) => type === 'K')!;
  return { processId: body.readInt32BE(0), secret: body.subarray(4) };
};
const fatal = async (wire: Wire): Promise<string | undefined> => {
  const last = (await wire.until('E')).at(-1);
  return last?.type === 'E' ? errorField(last, 'C') : undefined;
};

describe('versions', () => {
  test('3.0 has a short cancel key, 3.2 a long one', async () => {
    for (const [version, bytes] of [
      [0x30000, 4],
      [0x30002, 32],
    ] as const) {
      const wire = await dial(service.gateway);
      const messages = await enter(wire, version);
      expect(messages.map(({ type }) => type)).not.toContain('v');
      expect(keyOf(messages).secret).toHaveLength(bytes);
      wire.close();
    }
  });
  test('newer minor versions and unknown options are negotiated', async () => {
    const wire = await dial(service.gateway);
    wire.send(startup({ ...parameters(), '_pq_.novel': 'x', '_pq_.other': '' }, 0x3270f));
    const negotiated = (await wire.message())!;
    expect(negotiated.type).toBe('v');
    expect(negotiated.body.readInt32BE(0)).toBe(0x30002);
    expect(negotiated.body.readInt32BE(4)).toBe(2);
    expect(negotiated.body.toString('utf8', 8)).toBe('_pq_.novel\0_pq_.other\0');
    expect((await wire.message())!.type).toBe('R');
    wire.send(password());
    expect((await wire.until('Z')).at(-1)!.type).toBe('Z');
    wire.close();
  });
  test('other major versions are refused', async () => {
    for (const version of [0x20000, 0x40000, 0x10001]) {
      const wire = await dial(service.gateway);
      wire.send(startup(parameters(), version));
      expect(await fatal(wire)).toBe('0A000');
      expect(await wire.message()).toBeUndefined();
    }
  });
});

describe('encryption', () => {
  test('GSSENCRequest is declined, SSLRequest accepted, on one connection', async () => {
    const wire = await dial(service.gateway);
    wire.send(gssEncRequest);
    expect(await wire.byte()).toBe('N');
    wire.send(startup(parameters()));
    expect((await wire.message())!.type).toBe('R');
    wire.close();
    const encrypted = await dialTls(service.gateway);
    expect((await enter(encrypted)).at(-1)!.type).toBe('Z');
    expect(encrypted.socket.getProtocol()).toBe('TLSv1.3');
    encrypted.close();
  });
  test('direct TLS needs ALPN', async () => {
    const direct = await dialTls(service.gateway, { direct: true, protocols: ['postgresql'] });
    expect(direct.socket.alpnProtocol).toBe('postgresql');
    expect((await enter(direct)).at(-1)!.type).toBe('Z');
    direct.close();
    const without = await dialTls(service.gateway, { direct: true });
    without.send(startup(parameters()));
    expect((await without.until('R')).map(({ type }) => type)).not.toContain('R');
  });
  test('bytes sent in clear behind an SSLRequest are not taken for the client', async () => {
    const wire = await dial(service.gateway);
    wire.send(Buffer.concat([sslRequest, startup(parameters())]));
    expect(await fatal(wire)).toBe('08P01');
  });
  test('the certificate signs itself, is kept, and is for this host', async () => {
    const file = join(service.dataDir, 'gateway/server.crt');
    const certificate = new X509Certificate(readFileSync(file));
    expect(certificate.verify(certificate.publicKey)).toBe(true);
    expect(certificate.checkHost('localhost')).toBe('localhost');
    expect(certificate.checkIP('127.0.0.1')).toBe('127.0.0.1');
    expect(certificate.checkIP('::1')).toBe('::1');
    const wire = await dialTls(service.gateway);
    expect(wire.socket.getPeerX509Certificate()!.fingerprint256).toBe(certificate.fingerprint256);
    wire.close();
  });
});

describe('cancelling', () => {
  test('takes the secret, and stops that query alone', async () => {
    const [first, second] = [await dial(service.gateway), await dial(service.gateway)];
    const [mine, theirs] = [keyOf(await enter(first, 0x30002)), keyOf(await enter(second))];
    first.send(query('select pg_sleep(30)'));
    second.send(query('select pg_sleep(1)'));
    const attempt = async (processId: number, secret: Buffer) => {
      const wire = await dial(service.gateway);
      wire.send(cancelRequest(processId, secret));
      expect(await wire.message()).toBeUndefined();
    };
    const wrong = Buffer.from(mine.secret);
    wrong[31]! ^= 1;
    await attempt(mine.processId, wrong);
    await attempt(mine.processId, mine.secret.subarray(0, 4));
    await attempt(mine.processId, theirs.secret);
    await attempt(theirs.processId, mine.secret);
    expect((await second.until('Z')).map(({ type }) => type)).toContain('C');
    await attempt(mine.processId, mine.secret);
    const answer = await first.until('Z');
    expect(errorField(answer.find(({ type }) => type === 'E')!, 'C')).toBe('57014');
    first.close();
    second.close();
  });
  test('a query whose client is gone is stopped', async () => {
    const watcher = await admin();
    for (const ssl of [false, true]) {
      const client = await admin(ssl);
      client.query(`select 'abandoned', pg_sleep(300)`).catch(() => {});
      const running = async () => {
        const { rows } = await watcher.query(
          `select from pg_stat_activity where query like '%abandoned%' and pid <> pg_backend_pid()`,
        );
        return rows.length;
      };
      await expect.poll(running).toBe(1);
      (
        client as unknown as { connection: { stream: { destroy(): void } } }
      ).connection.stream.destroy();
      await expect.poll(running, { timeout: 10_000 }).toBe(0);
    }
    await watcher.end();
  });
});

describe('start-up', () => {
  test('parameters and options reach the server, replication does not', async () => {
    const wire = await dial(service.gateway);
    wire.send(
      startup({
        ...parameters(),
        application_name: 'wire test',
        options: '-c statement_timeout=1234ms -c search_path=one,two',
        replication: 'false',
      }),
    );
    await wire.until('R');
    wire.send(password());
    await wire.until('Z');
    wire.send(
      query(
        `select current_setting('application_name'), current_setting('statement_timeout'), current_setting('search_path')`,
      ),
    );
    const row = (await wire.until('Z')).find(({ type }) => type === 'D')!;
    expect(row.body.toString()).toMatch(/wire test.*1234ms.*one,two/s);
    wire.close();
    for (const replication of ['true', 'database', '1', 'on', '']) {
      const refused = await dial(service.gateway);
      refused.send(startup({ ...parameters(), replication }));
      expect(await fatal(refused)).toBe('28000');
    }
  });
  test('a setting the server does not know, or the role may not set: its own words', async () => {
    for (const [name, value, code] of [
      ['no_such_setting', '1', '42704'],
      ['log_statement', 'all', '42501'],
    ] as const) {
      const wire = await dial(service.gateway);
      wire.send(startup({ ...parameters(), [name]: value }));
      await wire.until('R');
      wire.send(password());
      expect(await fatal(wire)).toBe(code);
    }
  });
  test('a query sent before the server is ready is answered', async () => {
    for (const wire of [await dial(service.gateway), await dialTls(service.gateway)]) {
      wire.send(Buffer.concat([startup(parameters()), password(), query('select 41 + 1')]));
      await wire.until('Z');
      const answer = await wire.until('Z');
      expect(answer.find(({ type }) => type === 'D')!.body.toString()).toContain('42');
      wire.close();
    }
  });
  test('a query instead of a password, a password without its end', async () => {
    for (const bytes of [query('select 1'), message('p', Buffer.from('x')), message('p')]) {
      const wire = await dial(service.gateway);
      wire.send(startup(parameters()));
      await wire.until('R');
      wire.send(bytes);
      expect(await fatal(wire)).toBe('08P01');
    }
  });
});

describe('limits', () => {
  test('connections of one database', async () => {
    const own = await account.database();
    const login = { user: `${own.id}.admin`, password: own.admin_password };
    const clients = await Promise.all(
      Array.from({ length: 12 }, () => connect(service.gateway, login)),
    );
    expect(await loginResult(service.gateway, login)).toBe('53300');
    expect(
      await loginResult(service.gateway, { user: user(), password: database.admin_password }),
    ).toBe('in');
    await clients.pop()!.end();
    await expect.poll(() => loginResult(service.gateway, login)).toBe('in');
    await Promise.all(clients.map((client) => client.end()));
  });
  test('idle connections are closed, busy ones are not', async () => {
    const [idle, encrypted, busy] = [await admin(), await admin(true), await admin()];
    const work = busy.query('select pg_sleep(6)');
    expect(await Promise.all([ended(idle), ended(encrypted)])).toEqual(['57P05', '57P05']);
    await work;
    await busy.end();
  });
});

test('a connection holds its database awake; the next one wakes it', async () => {
  const own = await account.database();
  const login = { user: `${own.id}.admin`, password: own.admin_password };
  const started = async () => {
    const client = await connect(service.gateway, login);
    const { rows } = await client.query('select pg_postmaster_start_time()::text as at');
    return { client, at: rows[0].at };
  };
  const first = await started();
  for (let i = 0; i < 3; i++) await first.client.query('select pg_sleep(1)');
  const second = await started();
  expect(second.at).toBe(first.at);
  await Promise.all([first.client.end(), second.client.end()]);
  // Asleep after two seconds without anyone.
  await new Promise((done) => setTimeout(done, 4_000));
  const third = await started();
  expect(third.at).not.toBe(first.at);
  await third.client.end();
});

test('a database that cannot start says so, and opens once it can', async () => {
  const own = await account.database();
  const login = { user: `${own.id}.admin`, password: own.admin_password };
  const data = join(service.dataDir, 'instances', own.id, 'data');
  await expect
    .poll(() => existsSync(join(data, 'postmaster.pid')), { timeout: 20_000 })
    .toBe(false);
  const control = join(data, 'global/pg_control');
  renameSync(control, `${control}.away`);
  expect(await loginResult(service.gateway, login)).toBe('57P03');
  renameSync(`${control}.away`, control);
  expect(await loginResult(service.gateway, login)).toBe('in');
});

test('a server that ends a session says why, and its end is clean', async () => {
  for (const ssl of [false, true]) {
    const [client, killer] = [await admin(ssl), await admin()];
    const { rows } = await client.query('select pg_backend_pid() as pid');
    const end = ended(client);
    await killer.query('select pg_terminate_backend($1)', [rows[0].pid]);
    expect(await end).toBe('57P01');
    await killer.end();
  }
});

test('what went through the port shows in observability', async () => {
  const own = await account.database();
  const login = { user: `${own.id}.admin`, password: own.admin_password };
  for (const ssl of [false, true]) {
    const client = await connect(service.gateway, { ...login, ssl });
    for (let i = 0; i < 5; i++) await client.query(`select ${i} as simple, pg_sleep(0.01)`);
    for (let i = 0; i < 5; i++) await client.query('select $1::int as prepared', [i]);
    await client.query('select nonsense').catch(() => {});
    const seen = async () => {
      const { body } = await account.get(`/customer/databases/${own.id}/observability`);
      const find = (text: string) =>
        body.samples.find((sample: { query: string }) => sample.query.includes(text));
      return {
        active: body.summary.active_connections > 0,
        simple: find('simple')?.sample_count,
        prepared: find('prepared')?.sample_count,
        errors: find('nonsense')?.error_count,
      };
    };
    const round = ssl ? 2 : 1;
    await expect
      .poll(seen, { timeout: 10_000 })
      .toEqual({ active: true, simple: 5 * round, prepared: 5 * round, errors: round });
    await client.end();
  }
});

test('stopping the service ends connections with a message', async () => {
  const other = await startService();
  const own = await (await other.api.register()).database();
  const login = { user: `${own.id}.admin`, password: own.admin_password };
  const clients = [
    await connect(other.gateway, login),
    await connect(other.gateway, { ...login, ssl: true }),
  ];
  const waiting = await dial(other.gateway);
  const ends = clients.map(ended);
  const startedAt = performance.now();
  await other.stop();
  expect(await Promise.all(ends)).toEqual(['57P01', '57P01']);
  expect(await waiting.message()).toBeUndefined();
  expect(performance.now() - startedAt).toBeLessThan(10_000);
});

test('encryption can be required', async () => {
  const strict = await startService({ flags: ['--gateway-require-tls'] });
  try {
    const owner = await strict.api.register();
    const own = await owner.database();
    const login = { user: `${own.id}.admin`, password: own.admin_password };
    expect(await loginResult(strict.gateway, login)).toBe('28000');
    expect(await loginResult(strict.gateway, { ...login, ssl: true })).toBe('in');
    const token = await owner.post(`/customer/databases/${own.id}/connect-token`);
    expect(token.body.tls).toBe('required');
  } finally {
    await strict.stop();
  }
});
