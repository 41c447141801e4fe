// The command itself: help, refusals, a clean end.
import { spawn, spawnSync } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { startService } from '../support/service.ts';

const root = resolve(fileURLToPath(import.meta.url), '../../..');

function run(...args: string[]) {
  const child = spawn(process.execPath, [join(root, 'packages/server/src/main.ts'), ...args]);
  let output = '';
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  const ended = new Promise<{ code: number | null; output: string }>((done) =>
    child.once('close', (code) => done({ code, output })),
  );
  return { child, ended };
}

test('--help lists the settings', async () => {
  const { code, output } = await run('--help').ended;
  expect(code).toBe(0);
  for (const flag of [
    '--host',
    '--port',
    '--gateway-port',
    '--public-url',
    '--data-dir',
    '--metadata-url',
    '--log-level',
  ])
    expect(output).toContain(flag);
});

test('a wrong option is refused', async () => {
  const { code, output } = await run('--prot', '1').ended;
  expect(code).toBe(1);
  expect(output).toContain('unknown option --prot');
});

test('a taken port is named with the flag that changes it', async () => {
  const taken = createServer().listen(0, '127.0.0.1');
  await new Promise((done) => taken.once('listening', done));
  const { port } = taken.address() as { port: number };
  const service = await startService();
  try {
    for (const flag of ['--port', '--gateway-port']) {
      const failed = startService({ flags: [flag, String(port)] });
      await expect(failed).rejects.toThrow(`${port} is taken; choose another port with ${flag}`);
    }
    await expect(startService({ dataDir: service.dataDir })).rejects.toThrow(
      /another service is using/,
    );
  } finally {
    await service.stop();
    taken.close();
  }
});

test('ends cleanly, and comes back with everything', async () => {
  const service = await startService();
  const account = await service.api.register();
  const again = await service.kill().then(() => service.restart());
  expect((await again.api.call('GET', '/customer/me', { token: account.token })).body.id).toBe(
    account.id,
  );
  await again.stop();
  expect(again.log()).toContain('Stopped.');
  expect(again.log()).not.toContain('could not release');
});

test('told to stop while it starts, it stops and leaves nothing running', async () => {
  const dataDir = await mkdtemp(join(tmpdir(), 'coppice-test-'));
  try {
    for (const afterMs of [150, 600, 1_200]) {
      const args = ['--port', '0', '--gateway-port', '0', '--data-dir', dataDir];
      const started = run(...args, '--cache-dir', join(root, 'node_modules/.cache/coppice'));
      setTimeout(() => started.child.kill('SIGTERM'), afterMs);
      const { code, output } = await started.ended;
      // Before it listens to signals it has done nothing yet.
      if (code !== null) expect([code, output]).toEqual([0, expect.stringContaining('Stopped.')]);
      const left = spawnSync('pgrep', ['-f', dataDir]).stdout.toString();
      expect(left).toBe('');
    }
  } finally {
    await rm(dataDir, { recursive: true, force: true });
  }
});
