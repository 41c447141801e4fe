// The SDK's helper: a folder on disk becomes a running function.
import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type DeployError, deployFunction, packBundle, readFolder } from '@coppice/sdk';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let account: Account;
let target: { baseUrl: string; token: string; databaseId: string };
const folder = mkdtempSync(join(tmpdir(), 'coppice-sdk-test-'));

beforeAll(async () => {
  service = await startService();
  account = await service.api.register();
  target = {
    baseUrl: service.baseUrl,
    token: account.token,
    databaseId: (await account.database()).id,
  };
  mkdirSync(join(folder, 'lib'));
  mkdirSync(join(folder, '.git'));
  writeFileSync(join(folder, '.git/config'), 'secret');
  writeFileSync(
    join(folder, 'index.ts'),
    "import { double } from './lib/double.ts';\nimport big from './big.txt';\nexport const handler = ({ n }: { n: number }) => [double(n), big.length];\n",
  );
  writeFileSync(
    join(folder, 'lib/double.ts'),
    'export const double = (n: number): number => n * 2;\n',
  );
});
afterAll(async () => {
  await service.stop();
  rmSync(folder, { recursive: true });
});

test.each([
  ['small, inside the request', 10],
  ['large, through the files of the database', 2_000_000],
])('%s', async (_name, size) => {
  const content = randomBytes(size).toString('hex');
  writeFileSync(join(folder, 'big.txt'), content);
  const files = await readFolder(folder);
  expect(Object.keys(files).sort()).toEqual(['big.txt', 'index.ts', 'lib/double.ts']);
  expect(await packBundle(files)).toEqual(await packBundle(files));
  const { function: made, version } = await deployFunction(target, {
    name: `packed-${size}`,
    entrypoint: 'index.handler',
    files,
  });
  expect(version.bundle_ref).toMatch(size < 1000 ? /^data:/ : /^fs:\/functions\/packed/);
  const { body } = await account.post(
    `/customer/databases/${target.databaseId}/functions/${made.id}/invoke`,
    { input: { n: 21 } },
  );
  expect(body).toMatchObject({
    status: 'completed',
    result_json: JSON.stringify([42, content.length]),
  });
});

test('a refusal is an error with the status and the reason', async () => {
  const failure = await deployFunction(target, {
    name: 'broken',
    entrypoint: 'index.handler',
    files: { 'index.js': 'export const = 1' },
  }).catch((error: DeployError) => error);
  expect(failure).toMatchObject({
    name: 'DeployError',
    status: 422,
    message: /cannot be compiled/,
  });
});
