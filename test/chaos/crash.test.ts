// kill -9 at any moment loses nothing that was acknowledged.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { isSoak, sizeOf } from '../../scripts/soak-sizes.ts';
import { type RunningService, startService } from '../support/service.ts';

const databaseCount = sizeOf('written-databases');
const crashes = sizeOf('service-kills');
const writeMs = isSoak ? 3_000 : 1_000;

let service: RunningService | undefined;
afterEach(async () => {
  await service?.stop();
  service = undefined;
});

/** Inserts numbers one by one until `ends`; answers the ones that were acknowledged. */
async function write(
  baseUrl: string,
  token: string,
  id: string,
  from: number,
  ends: AbortSignal,
): Promise<number> {
  let acknowledged = from;
  while (!ends.aborted) {
    try {
      const answer = await fetch(`${baseUrl}/customer/databases/${id}/sql`, {
        method: 'POST',
        headers: { authorization: `Bearer ${token}` },
        body: JSON.stringify({ query: `insert into written values (${acknowledged + 1})` }),
      });
      if (answer.status === 200) acknowledged++;
      // Not acknowledged is not the same as not done: skip the number.
      else acknowledged = Number.NaN;
    } catch {
      return acknowledged;
    }
    if (Number.isNaN(acknowledged)) throw new Error('a write was refused while the service lived');
  }
  return acknowledged;
}

test('the service, again and again, while databases are written to', async () => {
  service = await startService({
    flags: ['--requests-per-second', '100000', '--request-burst', '100000'],
  });
  const account = await service.api.register();
  const databases = await Promise.all(
    Array.from({ length: databaseCount }, () => account.database()),
  );
  for (const { id } of databases) await account.sql(id, 'create table written (n int)');
  const acknowledged = new Map(databases.map(({ id }) => [id, 0]));

  for (let crash = 0; crash < crashes; crash++) {
    const ends = new AbortController();
    const { baseUrl } = service;
    const writers = databases.map(async ({ id }) => {
      acknowledged.set(
        id,
        await write(baseUrl, account.token, id, acknowledged.get(id)!, ends.signal),
      );
    });
    await new Promise((done) => setTimeout(done, writeMs));
    await service.kill();
    ends.abort();
    await Promise.all(writers);
    service = await service.restart();

    for (const { id } of databases) {
      const { status, body, text } = await service.api.call(
        'POST',
        `/customer/databases/${id}/sql`,
        {
          token: account.token,
          body: { query: 'select count(distinct n), max(n) from written' },
        },
      );
      expect({ status, text, log: status === 200 ? '' : service.log() }).toMatchObject({
        status: 200,
      });
      const [count, max] = body.rows[0];
      const expected = acknowledged.get(id)!;
      expect(expected).toBeGreaterThan(0);
      // The one write that was under way may or may not be there.
      expect([expected, expected + 1]).toContain(max);
      expect(count).toBe(max);
      acknowledged.set(id, max);
    }
  }
});

test('the server of one database under load: the next query works', async () => {
  service = await startService();
  const account = await service.api.register();
  const { id } = await account.database();
  await account.sql(id, 'create table written (n int)');
  for (let crash = 0; crash < crashes; crash++) {
    const before = (
      await account.sql(id, 'insert into written values (1); select count(*) from written')
    ).rows[0][0];
    process.kill(postmasterOf(service, id), 'SIGKILL');
    // One query may fall into the crash itself; the next one may not.
    await account.post(`/customer/databases/${id}/sql`, { query: 'select 1' });
    expect((await account.sql(id, 'select count(*) from written')).rows[0][0]).toBe(before);
  }
});

test('nothing of a killed service is left after the next one has ended', async () => {
  service = await startService();
  const account = await service.api.register();
  const { id } = await account.database();
  const { rows } = await account.sql(id, "select current_setting('unix_socket_directories')");
  await service.kill();
  service = await service.restart();
  const { dataDir } = service;
  await service.stop();
  service = undefined;
  expect(processesUsing(dataDir)).toEqual([]);
  expect(existsSync(dirname(rows[0][0]))).toBe(false);
});

function postmasterOf({ dataDir }: RunningService, id: string): number {
  const file = join(dataDir, 'instances', id, 'data/postmaster.pid');
  return Number(readFileSync(file, 'utf8').split('\n')[0]);
}

/** Command lines of processes that work in, or name, the directory. */
function processesUsing(directory: string): string[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((pid) => {
      try {
        const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ');
        return command.includes(directory) ? [command] : [];
      } catch {
        return [];
      }
    });
}
