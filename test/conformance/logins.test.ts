// Who gets in through the Postgres port: (password, token, key) × (right, other database, other
// role, expired, revoked, tampered), and what happens to those who are in when that changes.
import { createHmac } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Account, CreatedDatabase } from '../support/api.ts';
import { connect, ended, loginResult } from '../support/postgres-client.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let account: Account;
let mine: CreatedDatabase;
let other: CreatedDatabase;

beforeAll(async () => {
  service = await startService({ flags: ['--failed-login-burst', '1000'] });
  account = await service.api.register();
  [mine, other] = await Promise.all([account.database(), account.database()]);
});
afterAll(() => service?.stop());

const login = (
  user: string,
  password: string,
  more: { database?: string; options?: string } = {},
) => loginResult(service.gateway, { user, password, ...more });
const token = async (database: CreatedDatabase, role?: string): Promise<string> =>
  (await account.post(`/customer/databases/${database.id}/connect-token`, { role })).body.token;
const key = async (database: CreatedDatabase, body: object = {}) =>
  (await account.post(`/customer/databases/${database.id}/connect-keys`, body)).body as {
    id: string;
    connect_key: string;
  };
const asAdmin = (database: CreatedDatabase): Promise<pg.Client> =>
  connect(service.gateway, { user: `${database.id}.admin`, password: database.admin_password });

/** Another character at `index`. */
const changed = (text: string, index: number) => {
  const at = index < 0 ? text.length + index : index;
  return text.slice(0, at) + (text[at] === 'a' ? 'b' : 'a') + text.slice(at + 1);
};

describe('passwords', () => {
  test('right, with either separator', async () => {
    expect(await login(`${mine.id}.admin`, mine.admin_password)).toBe('in');
    expect(await login(`${mine.id}:admin`, mine.admin_password)).toBe('in');
  });
  test('of another database, for another role, changed, empty', async () => {
    expect(await login(`${mine.id}.admin`, other.admin_password)).toBe('28P01');
    expect(await login(`${mine.id}.readonly`, mine.admin_password)).toBe('28P01');
    expect(await login(`${mine.id}.nobody`, mine.admin_password)).toBe('28P01');
    expect(await login(`${mine.id}.admin`, changed(mine.admin_password, 3))).toBe('28P01');
    expect(await login(`${mine.id}.admin`, `${mine.admin_password} `)).toBe('28P01');
  });
  test('set, changed, expired and taken away with SQL count at once', async () => {
    const admin = await asAdmin(mine);
    await admin.query(`create role app login password 'first'`);
    expect(await login(`${mine.id}.app`, 'first')).toBe('in');
    expect(await login(`${mine.id}.app`, 'first')).toBe('in');
    await admin.query(`alter role app password 'zweites Paßwort \u00a0é'`);
    expect(await login(`${mine.id}.app`, 'first')).toBe('28P01');
    expect(await login(`${mine.id}.app`, 'zweites Paßwort \u00a0é')).toBe('in');
    await admin.query(`set password_encryption = md5; alter role app password 'old style'`);
    expect(await login(`${mine.id}.app`, 'old style')).toBe('in');
    expect(await login(`${mine.id}.app`, 'old stylf')).toBe('28P01');
    await admin.query(`alter role app valid until '2020-01-01'`);
    expect(await login(`${mine.id}.app`, 'old style')).toBe('28P01');
    await admin.query(`alter role app valid until 'infinity' nologin`);
    expect(await login(`${mine.id}.app`, 'old style')).toBe('28000');
    await admin.query(`alter role app login password null`);
    expect(await login(`${mine.id}.app`, 'old style')).toBe('28P01');
    await admin.query('drop role app');
    expect(await login(`${mine.id}.app`, 'old style')).toBe('28P01');
    await admin.end();
  });
  test('a reset password replaces the old one', async () => {
    const database = await account.database();
    const reset = await account.post(`/customer/databases/${database.id}/reset-password`);
    expect(await login(`${database.id}.admin`, database.admin_password)).toBe('28P01');
    expect(await login(`${database.id}.admin`, reset.body.admin_password)).toBe('in');
  });
});

describe('connect tokens', () => {
  test('right', async () => {
    expect(await login(`${mine.id}.admin`, await token(mine))).toBe('in');
    expect(await login(`${mine.id}.readonly`, await token(mine, 'readonly'))).toBe('in');
  });
  test('of another database or role', async () => {
    expect(await login(`${mine.id}.admin`, await token(other))).toBe('28P01');
    expect(await login(`${mine.id}.admin`, await token(mine, 'readonly'))).toBe('28P01');
    expect(await login(`${mine.id}.readonly`, await token(mine))).toBe('28P01');
  });
  test('tampered with in each part, unsigned, signed with the public key, a session token', async () => {
    const good = await token(mine);
    const [header, payload, signature] = good.split('.') as [string, string, string];
    expect(await login(`${mine.id}.admin`, `${changed(header, 5)}.${payload}.${signature}`)).toBe(
      '28P01',
    );
    expect(await login(`${mine.id}.admin`, `${header}.${changed(payload, 20)}.${signature}`)).toBe(
      '28P01',
    );
    expect(await login(`${mine.id}.admin`, `${header}.${payload}.${changed(signature, 9)}`)).toBe(
      '28P01',
    );
    const encode = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url');
    expect(await login(`${mine.id}.admin`, `${encode({ alg: 'none' })}.${payload}.`)).toBe('28P01');
    const jwks = await (await fetch(`${service.baseUrl}/.well-known/jwks.json`)).text();
    const forged = `${encode({ alg: 'HS256', kid: JSON.parse(jwks).keys[0].kid })}.${payload}`;
    const mac = createHmac('sha256', jwks).update(forged).digest('base64url');
    expect(await login(`${mine.id}.admin`, `${forged}.${mac}`)).toBe('28P01');
    expect(await login(`${mine.id}.admin`, account.token)).toBe('28P01');
  });
  test('never for a role that is missing or ours', async () => {
    for (const role of ['nobody', 'postgres', 'pg_read_all_data', 'coppice', 'coppice_as_1']) {
      const minted = await account.post(`/customer/databases/${mine.id}/connect-token`, { role });
      expect(minted.status).toBe(422);
      const made = await account.post(`/customer/databases/${mine.id}/connect-keys`, { role });
      expect(made.status).toBe(422);
    }
  });
  test('of a dropped role: the server refuses', async () => {
    const admin = await asAdmin(mine);
    await admin.query('create role passing login');
    const passing = await token(mine, 'passing');
    expect(await login(`${mine.id}.passing`, passing)).toBe('in');
    await admin.query('drop role passing');
    expect(await login(`${mine.id}.passing`, passing)).toBe('28000');
    await admin.end();
  });
  test('a read-only API token mints for readonly alone', async () => {
    const scope_json = JSON.stringify({ databases: [{ id: mine.id, access: 'ro' }] });
    const reader = account.as((await account.post('/customer/tokens', { scope_json })).body.token);
    const path = `/customer/databases/${mine.id}/connect-token`;
    expect((await reader.post(path)).status).toBe(403);
    expect((await reader.post(path, { role: 'admin' })).status).toBe(403);
    expect((await reader.post(path, { role: 'readonly' })).status).toBe(201);
  });
});

describe('connect keys', () => {
  test('right, of another database or role, changed', async () => {
    const { connect_key } = await key(mine);
    expect(await login(`${mine.id}.admin`, connect_key)).toBe('in');
    expect(await login(`${other.id}.admin`, connect_key)).toBe('28P01');
    expect(await login(`${mine.id}.readonly`, connect_key)).toBe('28P01');
    expect(await login(`${mine.id}.admin`, changed(connect_key, -1))).toBe('28P01');
    expect(await login(`${mine.id}.admin`, connect_key.toUpperCase())).toBe('28P01');
  });
  test('expired', async () => {
    const { connect_key } = await key(mine, { expires_in_days: 1 / 86_400 });
    expect(await login(`${mine.id}.admin`, connect_key)).toBe('in');
    await new Promise((done) => setTimeout(done, 1_100));
    expect(await login(`${mine.id}.admin`, connect_key)).toBe('28P01');
  });
  test('without the scope to connect', async () => {
    const { connect_key } = await key(mine, { scopes: ['fs:read', 'something:else'] });
    expect(await login(`${mine.id}.admin`, connect_key)).toBe('28000');
  });
  test('revoked: no way in, and who came in with it is out at once', async () => {
    const [first, second] = [await key(mine), await key(mine)];
    const user = `${mine.id}.admin`;
    const held = await connect(service.gateway, { user, password: first.connect_key });
    const encrypted = await connect(service.gateway, {
      user,
      password: first.connect_key,
      ssl: true,
    });
    const stays = await connect(service.gateway, { user, password: second.connect_key });
    const busy = held.query('select pg_sleep(60)').catch((error) => error.code);
    const ends = ended(encrypted);
    const path = `/customer/databases/${mine.id}/connect-keys/${first.id}`;
    expect((await account.delete(path)).status).toBe(200);
    expect(await ends).toBe('57P01');
    expect(await busy).toBe('57P01');
    expect(await login(user, first.connect_key)).toBe('28P01');
    // What it ran is not left running either.
    await expect
      .poll(async () => {
        const { rows } = await stays.query(
          `select from pg_stat_activity where query like '%pg_sleep(60)%' and pid <> pg_backend_pid()`,
        );
        return rows.length;
      })
      .toBe(0);
    await stays.end();
  });
});

describe('whatever the secret', () => {
  test('kinds of secrets do not stand in for one another', async () => {
    const admin = await asAdmin(mine);
    const shaped = 'cop_ck_not-a-key';
    await admin.query(`create role odd login password '${shaped}'`);
    expect(await login(`${mine.id}.odd`, shaped)).toBe('28P01');
    await admin.query('drop role odd');
    await admin.end();
    const { publishable_key } = (
      await account.post(`/customer/databases/${mine.id}/publishable-keys`)
    ).body;
    const { service_key } = (await account.post(`/customer/databases/${mine.id}/service-keys`))
      .body;
    for (const value of [publishable_key, service_key])
      expect(await login(`${mine.id}.admin`, value)).toBe('28P01');
  });

  test('roles of the service cannot be reached', async () => {
    const secrets = [mine.admin_password, await token(mine), (await key(mine)).connect_key];
    for (const role of ['postgres', 'pg_monitor', 'coppice'])
      for (const secret of secrets) expect(await login(`${mine.id}.${role}`, secret)).toBe('28P01');
    const user = `${mine.id}.admin`;
    for (const options of ['-c role=postgres', '-c session_authorization=postgres'])
      expect(await login(user, mine.admin_password, { options })).not.toBe('in');
    expect(
      await login(user, mine.admin_password, { options: '-c role=readonly -c work_mem=9MB' }),
    ).toBe('in');
  });

  test('user names without a database, unknown databases, other databases inside', async () => {
    expect(await login('admin', mine.admin_password)).toBe('28000');
    expect(await login('postgres', mine.admin_password)).toBe('28000');
    expect(await login('db_aaaaaaaaaaaaaaaaaaaa.admin', mine.admin_password)).toBe('3D000');
    expect(await login(`${mine.id}.admin`, mine.admin_password, { database: 'nope' })).toBe(
      '3D000',
    );
    for (const database of [mine.id, `${mine.id}.admin`])
      expect(await login(`${mine.id}.admin`, mine.admin_password, { database })).toBe('in');
    const admin = await asAdmin(mine);
    await admin.query('create database shadow');
    expect(await login(`${mine.id}.admin`, mine.admin_password, { database: 'shadow' })).toBe('in');
    await admin.query('drop database shadow');
    await admin.end();
  });

  test('a deleted database lets nobody in and ends who is in', async () => {
    const database = await account.database();
    const secrets = [
      database.admin_password,
      await token(database),
      (await key(database)).connect_key,
    ];
    const user = `${database.id}.admin`;
    const held = await Promise.all(
      secrets.map((password) => connect(service.gateway, { user, password })),
    );
    const ends = held.map(ended);
    expect((await account.delete(`/customer/databases/${database.id}`)).status).toBe(200);
    expect(await Promise.all(ends)).toEqual(['57P01', '57P01', '57P01']);
    for (const secret of secrets) expect(await login(user, secret)).toBe('3D000');
  });
});

test('too many failures: nobody from there until some time has passed', async () => {
  const strict = await startService({
    flags: ['--failed-login-burst', '5', '--failed-logins-per-second', '4'],
  });
  try {
    const owner = await strict.api.register();
    const [guarded, beside] = [await owner.database(), await owner.database()];
    const attempt = (database: CreatedDatabase, password: string) =>
      loginResult(strict.gateway, { user: `${database.id}.admin`, password });
    const guesses = await Promise.all(
      Array.from({ length: 40 }, (_, i) => attempt(guarded, `${i}`)),
    );
    expect(guesses.filter((code) => code === '28P01').length).toBeLessThanOrEqual(14);
    expect(guesses.filter((code) => code === '28000').length).toBeGreaterThanOrEqual(26);
    expect(await attempt(guarded, guarded.admin_password)).toBe('28000');
    expect(await attempt(beside, beside.admin_password)).toBe('in');
    await expect
      .poll(() => attempt(guarded, guarded.admin_password), { timeout: 20_000, interval: 500 })
      .toBe('in');
  } finally {
    await strict.stop();
  }
});
