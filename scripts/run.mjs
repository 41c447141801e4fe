// Runs a TypeScript file on the pinned Node, after installing what is missing.
// It is started by whatever Node the machine has (20 or later) and uses nothing but Node itself.
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = resolve(fileURLToPath(import.meta.url), '../..');
const [script, ...args] = process.argv.slice(2);

ensureInstalled(root);
if (script.startsWith('bench/')) ensureInstalled(join(root, 'bench'));

const node = join(root, 'node_modules/node/bin/node');
// Flags of a program are in a file beside its `src`, since Node reads them before any code.
const flagsFile = join(root, dirname(script), '../node-flags.json');
const flags = existsSync(flagsFile) ? JSON.parse(readFileSync(flagsFile, 'utf8')) : [];
const child = spawn(node, [...flags, join(root, script), ...args], {
  stdio: 'inherit',
  // Compiled code is kept: without it every thread needs a TypeScript compiler of its own.
  env: { NODE_COMPILE_CACHE: join(root, 'node_modules/.cache/compiled'), ...process.env },
});
// Ctrl-C reaches the whole foreground group; this parent only waits for the child's own clean end.
for (const signal of ['SIGINT', 'SIGHUP']) process.on(signal, () => {});
process.on('SIGTERM', () => child.kill('SIGTERM'));
child.on('exit', (code, signal) => {
  process.exitCode = code ?? (signal === 'SIGTERM' || signal === 'SIGINT' ? 0 : 1);
});

/**
 * Installs what the lock file says unless that was done before. (`npm ci` would refuse a lock file
 * without the binaries of other platforms, which not every registry has.)
 */
function ensureInstalled(directory) {
  const lock = createHash('sha256')
    .update(readFileSync(join(directory, 'package-lock.json')))
    .digest('hex');
  const stamp = join(directory, 'node_modules/.installed');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === lock) return;

  const started = Date.now();
  process.stderr.write(`Installing dependencies in ${directory} …\n`);
  const { status } = spawnSync(
    'npm',
    ['install', '--no-save', '--no-audit', '--no-fund', '--loglevel=error'],
    {
      cwd: directory,
      stdio: ['ignore', 2, 2],
    },
  );
  if (status !== 0) {
    process.stderr.write('npm install failed; see its messages above.\n');
    process.exit(1);
  }
  writeFileSync(stamp, lock);
  process.stderr.write(`Installed in ${((Date.now() - started) / 1000).toFixed(1)} s.\n`);
}
