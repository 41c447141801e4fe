// What the documents say is what happens.
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { operatingGuide } from '../../scripts/settings-table.ts';
import { startService } from '../support/service.ts';

const root = resolve(fileURLToPath(import.meta.url), '../../..');

test('docs/operating.md lists every setting (node scripts/settings-table.ts writes it)', () => {
  const { current, expected } = operatingGuide();
  expect(current).toBe(expected);
});

test("the README's tour works, line by line", async () => {
  const readme = readFileSync(join(root, 'README.md'), 'utf8');
  const steps = [...readme.matchAll(/^```sh tour\n([\s\S]*?)^```$/gm)].map((match) => match[1]);
  expect(steps.length).toBeGreaterThan(4);
  const service = await startService();
  try {
    const script = ['set -euo pipefail', ...steps.map((step) => `${step}\necho; echo =====`)]
      .join('\n')
      .replace('BASE=http://127.0.0.1:8080', `BASE=${service.baseUrl}`);
    const { stdout } = await promisify(execFile)('bash', ['-c', script], { timeout: 60_000 });
    const [me, , rows, branch, invoked, revoked] = stdout.split('=====');
    expect(me).toContain('"status":"active"');
    expect(rows).toContain('"command":"INSERT"');
    expect(rows).toMatch(/pear\s*\|\s*0\.90[\s\S]*plum\s*\|\s*1\.20/);
    expect(branch).toContain('"command":"DELETE"');
    expect(branch).toContain('"rows":[[2]]');
    expect(invoked).toContain('"status":"completed"');
    expect(invoked).toContain('hello');
    expect(revoked).toMatch(/read-only|permission|cannot/);
    expect(revoked).toContain('invalid or expired token');
  } finally {
    await service.stop();
  }
});
