import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { randomFrom, seed, sizeOf, timeLimitMs } from '../../../../../scripts/soak-sizes.ts';
import { PoolExhausted } from './pool.ts';
import { startTestRuntime, type TestRuntime } from './test-runtime.ts';

const invocations = sizeOf('invocations');

const childrenOf = (pid: number) =>
  execFileSync('sh', ['-c', `pgrep -P ${pid} -x bwrap || true`])
    .toString()
    .split('\n')
    .filter(Boolean);

test(
  `${invocations} invocations with random failures (seed ${seed}): one outcome each, no sandbox left`,
  async () => {
    const sandbox = startTestRuntime({ maxSandboxes: 6, maxPerFunction: 3, maxWaitMs: 600_000 });
    const source = `export const handler = async ({ how, n }) => {
    switch (how) {
      case 'throw': throw new Error('thrown ' + n);
      case 'reject': return Promise.reject(new TypeError('rejected ' + n));
      case 'exit': Deno.exit(3);
      case 'hang': await new Promise(() => {});
      case 'late': setTimeout(() => { throw new Error('late') }, 0); return n;
      case 'pollute': Object.prototype['p' + n] = 1; return n;
      case 'big': return 'x'.repeat(7 * 1024 * 1024);
      default: return n;
    }
  }`;
    const expected: Record<string, string[]> = {
      none: ['completed'],
      throw: ['failed'],
      reject: ['failed'],
      exit: ['failed'],
      hang: ['timed_out'],
      // The error may come before or after the answer.
      late: ['completed', 'failed'],
      pollute: ['completed'],
      big: ['failed'],
    };
    const kinds = Object.keys(expected);
    const random = randomFrom(seed);
    let started = 0;
    let ended = 0;
    const client = async () => {
      while (started < invocations) {
        const n = started++;
        const how = random() < 0.7 ? 'none' : kinds[Math.floor(random() * kinds.length)]!;
        const outcome = await sandbox.run(source, {
          name: `f${n % 3}`,
          input: { how, n },
          timeoutMs: how === 'hang' ? 200 : 30_000,
        });
        ended++;
        expect(expected[how], `${how}: ${JSON.stringify(outcome)}`).toContain(outcome.status);
        if (outcome.status === 'completed') expect(outcome.resultJson).toBe(String(n));
      }
    };
    await Promise.all(Array.from({ length: 8 }, client));
    expect(ended).toBe(invocations);
    const { total, running, waiting } = sandbox.runtime.counts();
    expect(total).toBeLessThanOrEqual(6);
    expect(waiting).toBe(0);
    expect(running).toBeLessThanOrEqual(1);
    await sandbox.close();
    expect(sandbox.runtime.counts().total).toBe(0);
    expect(childrenOf(process.pid)).toEqual([]);
  },
  timeLimitMs(300_000),
);

describe('the pool', () => {
  let sandbox: TestRuntime;
  beforeAll(async () => {
    sandbox = startTestRuntime({
      maxSandboxes: 4,
      maxPerFunction: 2,
      maxWaitMs: 2_000,
      idleMs: 200,
      spares: 1,
    });
    await sandbox.runtime.ready();
  });
  afterAll(() => sandbox.close());
  const slow =
    'export const handler = async ({ ms }) => { await new Promise((r) => setTimeout(r, ms)); return "done"; }';

  test('runs of one function at once are limited; who waits too long is turned away', async () => {
    const runs = Array.from({ length: 5 }, () =>
      sandbox.run(slow, { name: 'slow', input: { ms: 5_000 } }),
    );
    const settled = await Promise.allSettled(runs);
    const refused = settled.filter((run) => run.status === 'rejected');
    expect(refused).toHaveLength(3);
    for (const run of refused) expect(run.reason).toBeInstanceOf(PoolExhausted);
  });

  test('who waits for one function does not hold up another', async () => {
    const busy = Promise.allSettled(
      Array.from({ length: 4 }, () => sandbox.run(slow, { name: 'busy', input: { ms: 1_500 } })),
    );
    expect((await sandbox.run('export const handler = () => 1')).status).toBe('completed');
    expect(sandbox.runtime.counts().waiting).toBeGreaterThan(0);
    await busy;
  });

  test('who waits is served in turn', async () => {
    const runs = Array.from({ length: 6 }, () =>
      sandbox.run(slow, { name: 'brief', input: { ms: 5 } }),
    );
    for (const outcome of await Promise.all(runs)) expect(outcome.status).toBe('completed');
  });

  test('there are never more sandboxes than allowed, and idle ones make room', async () => {
    for (let i = 0; i < 8; i++) {
      expect((await sandbox.run(slow, { name: `many ${i}`, input: { ms: 0 } })).status).toBe(
        'completed',
      );
      expect(sandbox.runtime.counts().total).toBeLessThanOrEqual(4);
    }
  });

  test('idle sandboxes end', async () => {
    await sandbox.run(slow, { name: 'idle', input: { ms: 0 } });
    await expect.poll(() => sandbox.runtime.counts().idle, { timeout: 5_000 }).toBe(0);
  });

  test('another memory limit gets a sandbox of its own', async () => {
    const source =
      'export const handler = () => { const a = new Uint8Array(200e6).fill(1); return a.length }';
    expect((await sandbox.run(source)).status).toBe('failed');
    expect((await sandbox.run(source, { memoryMb: 512 })).status).toBe('completed');
  });
});

test('without bubblewrap functions run with the permissions of Deno, or not at all', async () => {
  const bare = startTestRuntime({ bubblewrap: '/nonexistent/bwrap', allowUnisolated: true });
  expect(await bare.runtime.ready()).toBe('unisolated');
  expect(await bare.result('export const handler = ({ n }) => n + 1', { input: { n: 1 } })).toBe(2);
  for (const expression of [
    'Deno.readTextFileSync("/etc/passwd")',
    'Deno.env.get("PATH")',
    'new Deno.Command("/bin/true").outputSync()',
    'await fetch("http://127.0.0.1:1/")',
    'await Deno.connect({ port: 1 })',
  ])
    expect(
      await bare.result(
        `export const handler = async () => { try { return ${expression} } catch (error) { return error.name } }`,
      ),
    ).toMatch(/NotCapable|TypeError/);
  await bare.close();

  const strict = startTestRuntime({ bubblewrap: '/nonexistent/bwrap', allowUnisolated: false });
  expect(await strict.runtime.ready()).toBe('off');
  expect(await strict.run('export const handler = () => 1')).toMatchObject({
    status: 'failed',
    error: { message: /functions are off: .*bubblewrap/ },
  });
  await strict.close();
});

test('ending in the middle of a boot leaves no process', async () => {
  const inside = () =>
    readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .filter((pid) => {
        try {
          const command = readFileSync(`/proc/${pid}/cmdline`, 'latin1');
          return command.includes(`coppice-functions-${process.pid}-`);
        } catch {
          return false;
        }
      });
  for (let delayMs = 0; delayMs < 60; delayMs += 3) {
    const sandbox = startTestRuntime({ spares: 3 });
    await sandbox.runtime.ready();
    await new Promise((resolve) => setTimeout(resolve, delayMs));
    await sandbox.close();
    await expect.poll(inside, { timeout: 5_000 }).toEqual([]);
  }
});

test('nothing is left on disk', async () => {
  const own = () => readdirSync(tmpdir()).filter((name) => name.includes(`-${process.pid}-`));
  const sandbox = startTestRuntime();
  await sandbox.result('export const handler = () => 1');
  expect(own()).not.toEqual([]);
  await sandbox.close();
  expect(own().filter((name) => /^coppice-(functions|build)-/.test(name))).toEqual([]);
});
