// Functions across crashes and restarts: schedules go on, records stay, nothing is left running.
import { readFileSync } from 'node:fs';
import { afterEach, expect, test } from 'vitest';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService | undefined;
afterEach(async () => {
  await service?.stop();
  service = undefined;
});

const childrenOf = (pid: number) =>
  readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean).map(Number);
const commandOf = (pid: number) => readFileSync(`/proc/${pid}/comm`, 'utf8').trim();
const dataUrl = (source: string) =>
  `data:text/javascript;base64,${Buffer.from(source).toString('base64')}`;

async function deploy(account: Account, source: string, more: object = {}): Promise<string> {
  const { id } = await account.database();
  const functions = `/customer/databases/${id}/functions`;
  const { body } = await account.post(functions, {
    name: 'f',
    entrypoint: 'index.handler',
    bundle_ref: dataUrl(source),
    ...more,
  });
  return `${functions}/${body.function.id}`;
}

test('a run that a crash cut off is failed with that reason; finished ones stay', async () => {
  service = await startService();
  const account = await service.api.register();
  const path = await deploy(
    account,
    'export const handler = async ({ ms }) => { console.log("begun"); await new Promise((r) => setTimeout(r, ms)); return "done" }',
    { limits: { timeout_ms: 120_000 } },
  );
  const finished = await account.post(`${path}/invoke`, { input: { ms: 0 }, idempotency_key: 'a' });
  expect(finished.body.status).toBe('completed');
  const cut = account
    .post(`${path}/invoke`, { input: { ms: 100_000 }, idempotency_key: 'b' })
    .catch(() => {});
  await expect.poll(async () => (await account.get(`${path}/runs`)).body[0].status).toBe('running');
  await service.kill();
  await cut;

  service = await service.restart();
  const again = service.api;
  const get = (at: string) => again.call('GET', at, { token: account.token });
  const { body: runs } = await get(`${path}/runs`);
  expect(runs.map((run: { status: string }) => run.status)).toEqual(['failed', 'completed']);
  const invoke = (idempotency_key: string) =>
    again.call('POST', `${path}/invoke`, { token: account.token, body: { idempotency_key } });
  expect((await invoke('a')).body).toEqual(finished.body);
  const failed = await invoke('b');
  expect(failed.body).toMatchObject({ run_id: runs[0].id, status: 'failed' });
  expect(JSON.parse(failed.body.result_json).error.message).toBe(
    'the service ended during the run',
  );
});

test('no sandbox outlives the service, however it ends', async () => {
  service = await startService();
  const account = await service.api.register();
  const path = await deploy(
    account,
    'export const handler = async () => { await new Promise(() => {}) }',
  );
  const hanging = account.post(`${path}/invoke`).catch(() => {});
  const servicePid = service.pid;
  let sandboxes: number[] = [];
  let inside: number[] = [];
  await expect
    .poll(
      () => {
        sandboxes = childrenOf(servicePid).filter((pid) => commandOf(pid) === 'bwrap');
        inside = sandboxes.flatMap(childrenOf);
        return inside.length;
      },
      { timeout: 10_000 },
    )
    .toBeGreaterThan(0);
  await service.kill();
  await hanging;
  const alive = () =>
    [...sandboxes, ...inside].filter((pid) => {
      try {
        process.kill(pid, 0);
        return true;
      } catch {
        return false;
      }
    });
  await expect.poll(alive, { timeout: 5_000 }).toEqual([]);
  service = await service.restart();
});

test('a run that is going on when the service stops is recorded as such', async () => {
  service = await startService();
  const account = await service.api.register();
  const path = await deploy(
    account,
    'export const handler = async () => { console.log("here"); await new Promise(() => {}) }',
  );
  const run = account.post(`${path}/invoke`).catch(() => {});
  await expect.poll(async () => (await account.get(`${path}/runs`)).body.length).toBe(1);
  // A directory that is kept: the same service again.
  const kept = await startServiceOn(service);
  const { body: runs } = await kept.call('GET', `${path}/runs`, { token: account.token });
  await run;
  expect(runs[0].status).toBe('failed');
});

/** Stops it in an orderly way and starts it again on the same data. */
async function startServiceOn(running: RunningService) {
  process.kill(running.pid, 'SIGTERM');
  await expect
    .poll(
      () => {
        try {
          process.kill(running.pid, 0);
          return 'alive';
        } catch {
          return 'gone';
        }
      },
      { timeout: 20_000 },
    )
    .toBe('gone');
  service = await running.restart();
  return service.api;
}

test('schedules go on after a crash; what was missed runs once', async () => {
  service = await startService();
  const account = await service.api.register();
  const path = await deploy(
    account,
    'export const handler = (input, ctx) => ctx.self.triggerType',
    {
      cron_schedule: '* * * * * *',
    },
  );
  const runs = async () =>
    (await service!.api.call('GET', `${path}/runs?limit=1000`, { token: account.token })).body as {
      trigger_type: string;
      status: string;
      created_at: string;
    }[];
  await expect
    .poll(async () => (await runs()).length, { timeout: 20_000 })
    .toBeGreaterThanOrEqual(2);
  for (const run of await runs()) expect(run.trigger_type).toBe('cron');
  await service.kill();
  const before = Date.now();
  await new Promise((resolve) => setTimeout(resolve, 4_000));
  service = await service.restart();
  await expect
    .poll(async () => (await runs()).filter((run) => Date.parse(run.created_at) > before).length, {
      timeout: 20_000,
    })
    .toBeGreaterThanOrEqual(2);
  // Never two for one second: neither twice the same tick nor one for each that was missed.
  const late = (await runs()).map((run) => Math.floor(Date.parse(run.created_at) / 250));
  expect(new Set(late).size).toBe(late.length);
});
