// The checks that need nothing running: types, format and lint, import direction.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { checkImports } from './check-imports.ts';

const root = resolve(fileURLToPath(import.meta.url), '../..');

export function runChecks(): boolean {
  return [
    step('types', () => run('tsc', '-p', '.')),
    // The peers it names are installed by the first `npm run bench`.
    !existsSync(join(root, 'bench/node_modules')) ||
      step('types of bench', () => run('tsc', '-p', 'bench')),
    step('format and lint', () => run('biome', 'ci', '--error-on-warnings', '.')),
    step('import direction', () => {
      const problems = checkImports();
      for (const problem of problems) console.error(`  ${problem}`);
      return problems.length === 0;
    }),
  ].every(Boolean);
}

function step(name: string, check: () => boolean): boolean {
  const startedAt = performance.now();
  const passed = check();
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(1);
  console.log(`${passed ? '✔' : '✘'} ${name} (${seconds} s)`);
  return passed;
}

function run(tool: string, ...args: string[]): boolean {
  const { status } = spawnSync(join(root, 'node_modules/.bin', tool), args, {
    cwd: root,
    stdio: ['ignore', 'inherit', 'inherit'],
  });
  return status === 0;
}

if (import.meta.main && !runChecks()) process.exitCode = 1;
