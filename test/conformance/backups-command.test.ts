// The operator's command works on the backups alone: here with everything else lost.
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startService } from '../support/service.ts';

const root = resolve(fileURLToPath(import.meta.url), '../../..');
let directory: string;
let backupDir: string;
let backupId: string;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'coppice-operator-'));
  backupDir = join(directory, 'elsewhere');
  const service = await startService({ flags: ['--backup-dir', backupDir, '--pool-size', '1'] });
  const account = await service.api.register();
  const { id } = await account.database('shop');
  await account.sql(id, 'create table t(i int); insert into t values (42)');
  const backups = `/customer/databases/${id}/backups`;
  backupId = (await account.post(backups, { label: 'nightly' })).body.id;
  while ((await account.get(`${backups}/${backupId}`)).body.state === 'creating') await delay(50);
  // Control database, master key, instances: all of it goes.
  await service.stop();
});
afterAll(() => rm(directory, { recursive: true, force: true }));

function command(...args: string[]): Promise<{ code: number; output: string }> {
  const argv = [join(root, 'packages/server/src/main.ts'), 'backups', ...args];
  return new Promise((done) => {
    execFile(process.execPath, argv, { timeout: 120_000 }, (error, stdout, stderr) =>
      done({ code: Number(error?.code ?? 0), output: stdout + stderr }),
    );
  });
}

test('lists and verifies', async () => {
  const listed = await command('list', '--backup-dir', backupDir);
  expect(listed.code).toBe(0);
  expect(listed.output).toContain(backupId);
  expect(listed.output).toMatch(/shop \(db_\w+ of anon_\w+\) {2}nightly/);
  expect(await command('verify', backupId, '--backup-dir', backupDir)).toEqual({
    code: 0,
    output: `${backupId} is whole\n`,
  });
});

test('restores into a fresh installation', { timeout: 180_000 }, async () => {
  const dataDir = join(directory, 'fresh');
  const cache = ['--cache-dir', join(root, 'node_modules/.cache/coppice')];
  const restored = await command(
    ...['restore', backupId, '--name', 'shop', '--pool-size', '1'],
    ...['--data-dir', dataDir, '--backup-dir', backupDir, ...cache],
  );
  expect(restored).toMatchObject({ code: 0, output: expect.stringContaining('Restored') });
  const value = (name: string) => new RegExp(`${name} +(\\S+)`).exec(restored.output)![1]!;

  const service = await startService({ dataDir, flags: ['--pool-size', '1'] });
  try {
    const owner = (await service.api.register()).as(value('token'));
    expect((await owner.sql(value('database'), 'select i from t')).rows).toEqual([[42]]);
    // Its customer takes it over.
    const customer = await service.api.register();
    const adopted = await customer.post('/customer/adopt-anonymous-databases', {
      anonymous_customer_id: value('anonymous_id'),
      anonymous_secret: value('anonymous_secret'),
      database_ids: [value('database')],
      idempotency_key: 'take over',
    });
    expect(adopted.body.total_transferred).toBe(1);
  } finally {
    await service.stop();
  }
});

test('finds and names a flipped byte, and restores nothing of it', {
  timeout: 120_000,
}, async () => {
  const path = join(backupDir, `${backupId}.backup`);
  const bytes = await readFile(path);
  const at = Math.floor(bytes.length * 0.7);
  bytes[at] = bytes[at]! ^ 1;
  await writeFile(path, bytes);
  const verified = await command('verify', backupId, '--backup-dir', backupDir);
  expect(verified.code).toBe(1);
  expect(verified.output).toMatch(
    new RegExp(`${backupId}: backup is damaged at byte \\d+ \\(data/`),
  );
  const restored = await command(
    ...['restore', backupId, '--name', 'again', '--pool-size', '1'],
    ...['--data-dir', join(directory, 'fresh'), '--backup-dir', backupDir],
  );
  expect(restored.code).toBe(1);
  expect(restored.output).toContain('damaged at byte');
});

test('says how it is used', async () => {
  expect((await command()).output).toContain('backups restore <id> --name NAME');
  expect((await command('restore', backupId)).code).toBe(2);
  const unknown = await command('verify', 'bkp_unknown', '--backup-dir', backupDir);
  expect(unknown).toMatchObject({
    code: 1,
    output: expect.stringContaining('no backup bkp_unknown'),
  });
  const outside = await command('verify', '../../etc/passwd', '--backup-dir', backupDir);
  expect(outside.code).toBe(1);
});
