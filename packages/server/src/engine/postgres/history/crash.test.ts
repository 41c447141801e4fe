// kill -9 while bases are taken, the log is moved and old history removed: nothing that was
// committed is lost, every instant since the last base can be reached, and no remains are left.
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { sizeOf, timeLimitMs } from '../../../../../../scripts/soak-sizes.ts';
import { openTestEngine } from './open-test-engine.ts';

const rounds = sizeOf('pruning-kills');
let dataDir: string;
beforeAll(async () => {
  dataDir = await mkdtemp(join(tmpdir(), 'coppice-crash-'));
});
afterAll(() => rm(dataDir, { recursive: true, force: true }));

it(
  `survives ${rounds} kills in the middle of pruning`,
  async () => {
    const first = await openTestEngine({ dataDir });
    const id = await first.create();
    await first.query(id, 'create table t(i int primary key)');
    await first.close({ keepData: true });

    for (let round = 0; round < rounds; round++) {
      const sure = await runUntilKilled(id, Math.random() * 1200);
      const test = await openTestEngine({ dataDir });
      try {
        const rows = async (of: string) =>
          (await test.query(of, 'select i from t order by i')).map(({ i }) => i as number);
        const all = await rows(id);
        expect(all).toEqual(Array.from({ length: all.length }, (_, i) => i + 1));
        expect(all.length).toBeGreaterThanOrEqual(sure.written);
        expect(await rows(await test.branch(id))).toEqual(all);
        expect(await rows(await test.branch(id, sure.atMicros))).toEqual(
          all.slice(0, sure.written),
        );
        await test.history.upkeep.sweep();
        const bases = await readdir(join(test.fleet.paths(id).history, 'bases'));
        expect(bases.filter((name) => name.startsWith('.'))).toEqual([]);
        for (const name of await readdir(join(dataDir, 'instances')))
          if (name !== id) await test.engine.destroy(name);
      } finally {
        await test.close({ keepData: true });
      }
    }
  },
  timeLimitMs(120_000),
);

/** Lets it work for a while after its first round, and tells what it was sure of last. */
async function runUntilKilled(id: string, afterMs: number) {
  const script = resolve(import.meta.dirname, 'crash-child.ts');
  const child = fork(script, [dataDir, id], { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] });
  let sure: { written: number; atMicros: bigint } | undefined;
  child.on('message', ({ written, atMicros }: { written: number; atMicros: string }) => {
    sure = { written, atMicros: BigInt(atMicros) };
  });
  const exited = once(child, 'exit');
  await Promise.race([once(child, 'message'), exited]);
  await delay(afterMs);
  child.kill('SIGKILL');
  await exited;
  if (!sure) throw new Error('the child ended before it began');
  return sure;
}
