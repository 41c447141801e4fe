// `npm run soak`: the fuzz, chaos and property tests at their full size. A seed makes a run
// repeatable, and sizes are flags: `npm run soak -- --seed 7 --connects 500 test/chaos`.
import { spawnSync } from 'node:child_process';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { type SizeName, sizes, variableOf } from './soak-sizes.ts';

const root = resolve(fileURLToPath(import.meta.url), '../..');
const names = Object.keys(sizes) as SizeName[];

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    help: { type: 'boolean', short: 'h', default: false },
    seed: { type: 'string' },
    'timeout-minutes': { type: 'string', default: '240' },
    ...Object.fromEntries(names.map((name) => [name, { type: 'string' as const }])),
  },
});
const { help, ...rest } = values;
const given: Record<string, string | undefined> = rest;

if (help) {
  console.log('npm run soak -- [--seed <n>] [--timeout-minutes <n>] [sizes] [test files]\n');
  for (const name of names)
    console.log(`  ${`--${name} <n>`.padEnd(26)} ${sizes[name].about} (${sizes[name].soak})`);
} else process.exitCode = soak();

function soak(): number {
  const env: NodeJS.ProcessEnv = { ...process.env, COPPICE_SOAK: '1' };
  for (const name of names) {
    const size = given[name];
    if (size === undefined) continue;
    if (!/^[1-9]\d*$/.test(size)) throw new Error(`--${name}: ${size} is not a size`);
    env[variableOf(name)] = size;
  }
  env.COPPICE_SEED = given.seed ?? String(Math.floor(Math.random() * 2 ** 31));
  console.log(`seed ${env.COPPICE_SEED}`);
  const timeoutMs = Number(given['timeout-minutes']) * 60_000;
  const limits = [`--testTimeout=${timeoutMs}`, `--hookTimeout=${timeoutMs}`, '--maxWorkers=1'];
  const vitest = join(root, 'node_modules/.bin/vitest');
  const { status } = spawnSync(vitest, ['run', ...limits, ...positionals], {
    cwd: root,
    stdio: 'inherit',
    env,
  });
  return status ?? 1;
}
