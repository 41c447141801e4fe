// `npm run soak`: the fuzz, chaos and property tests at their full size. A seed makes a run
// repeatable: `npm run soak -- --seed 7 test/chaos`.
import { spawnSync } from 'node:child_process';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const root = resolve(fileURLToPath(import.meta.url), '../..');
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { seed: { type: 'string' }, 'timeout-minutes': { type: 'string', default: '240' } },
});
const seed = values.seed ?? String(Math.floor(Math.random() * 2 ** 31));
console.log(`seed ${seed}`);

const timeoutMs = Number(values['timeout-minutes']) * 60_000;
const { status } = spawnSync(
  join(root, 'node_modules/.bin/vitest'),
  [
    'run',
    `--testTimeout=${timeoutMs}`,
    `--hookTimeout=${timeoutMs}`,
    '--maxWorkers=1',
    ...positionals,
  ],
  {
    cwd: root,
    stdio: 'inherit',
    env: { ...process.env, COPPICE_SOAK: '1', COPPICE_SEED: seed },
  },
);
process.exitCode = status ?? 1;
