// Servers and the service itself are killed at the worst moment: what was acknowledged is there
// afterwards, everything works again, and nothing is left over.
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { sizeOf } from '../../scripts/soak-sizes.ts';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

const size = sizeOf('made-databases');
const kills = sizeOf('server-kills');

let service: RunningService | undefined;

afterEach(async () => {
  await service?.stop();
  service = undefined;
});

/** Servers that work on a database of the service, by database. */
function postmasters(dataDir: string): Map<string, number> {
  const found = new Map<string, number>();
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name)))
    try {
      const home = readlinkSync(`/proc/${pid}/cwd`);
      const id = home.startsWith(join(dataDir, 'instances/')) && home.split('/').at(-2);
      if (
        id &&
        Number(readFileSync(join(home, 'postmaster.pid'), 'utf8').split('\n')[0]) === Number(pid)
      )
        found.set(id, Number(pid));
    } catch {
      // It ended while we looked.
    }
  return found;
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** After a restart the credential is the same, the address may be another. */
const again = (account: Account, restarted: RunningService): Account => {
  const call = (method: string) => (path: string, body?: unknown) =>
    restarted.api.call(method, path, { token: account.token, body });
  return { ...account, get: call('GET'), post: call('POST'), delete: call('DELETE') };
};

test('kill -9 of the service with databases awake: all are reachable, no orphan, no data lost', async () => {
  const first = await startService();
  service = first;
  const account = await first.api.register();
  const databases = await Promise.all(Array.from({ length: size }, () => account.database()));
  await Promise.all(
    databases.map(({ id }, n) => account.sql(id, `create table t as select ${n} as n`)),
  );
  const before = postmasters(first.dataDir);
  expect(before.size).toBe(size);

  await first.kill();
  service = await first.restart();
  expect([...before.values()].filter(isAlive)).toEqual([]);
  const same = again(account, service);
  for (const [n, { id }] of databases.entries()) {
    const answer = await same.post(`/customer/databases/${id}/sql`, { query: 'select n from t' });
    expect(answer.body.rows).toEqual([[n]]);
  }
  expect(postmasters(service.dataDir).size).toBe(size);
});

test('kill -9 of a server under load: the next query works, nothing acknowledged is lost', async () => {
  service = await startService();
  const account = await service.api.register();
  const { id } = await account.database();
  await account.sql(id, 'create table t (n int primary key)');
  const acknowledged: number[] = [];
  let next = 0;
  for (let round = 0; round < kills; round++) {
    let isOver = false;
    const writers = Array.from({ length: 4 }, async () => {
      while (!isOver) {
        const n = next++;
        const answer = await account.post(`/customer/databases/${id}/sql`, {
          query: `insert into t values (${n})`,
        });
        if (answer.status === 200) acknowledged.push(n);
        // Those that were under way end as any statement does whose server goes.
        else expect(answer.status, answer.text).toBe(422);
      }
    });
    const target = acknowledged.length + 50;
    while (acknowledged.length < target) await account.get('/customer/me');
    process.kill(postmasters(service.dataDir).get(id)!, 'SIGKILL');
    const recovered = acknowledged.length + 50;
    while (acknowledged.length < recovered) await account.get('/customer/me');
    isOver = true;
    await Promise.all(writers);
  }
  const { rows } = await account.sql(id, 'select n from t');
  const found = new Set((rows as number[][]).map(([n]) => n));
  expect(acknowledged.filter((n) => !found.has(n))).toEqual([]);
});

test('kill -9 of the service while databases are made: every row has a directory, every directory a row', async () => {
  let current = await startService();
  service = current;
  const account = await current.api.register();
  const acknowledged: string[] = [];
  for (let round = 0; round < kills; round++) {
    const caller = again(account, current);
    const creating = Array.from({ length: 12 }, async (_, n) => {
      const answer = await caller
        .post('/customer/databases', { name: `made-${round}-${n}` })
        .catch(() => null);
      if (answer?.status === 201) acknowledged.push(answer.body.id);
    });
    await Promise.race(creating);
    await current.kill();
    await Promise.all(creating);
    current = await current.restart();
    service = current;
  }
  const { body } = await again(account, current).get('/customer/databases');
  const listed = (body as { id: string }[]).map(({ id }) => id);
  expect(listed).toEqual(expect.arrayContaining(acknowledged));
  expect((await readdir(join(current.dataDir, 'instances'))).toSorted()).toEqual(listed.toSorted());
  for (const id of listed) {
    const answer = await again(account, current).post(`/customer/databases/${id}/sql`, {
      query: 'select 1',
    });
    expect(answer.status, answer.text).toBe(200);
  }
});
