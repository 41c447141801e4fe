// What the tests need besides npm packages: real clients and a real browser from Debian. Root
// installs them; an ordinary user is told once, before the tests that need them fail.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';

/** A file that the package brings → the package. */
const packages: Record<string, string> = {
  '/usr/bin/psql': 'postgresql-client',
  '/usr/bin/bwrap': 'bubblewrap',
  '/usr/bin/chromium': 'chromium',
};

export async function ensureTestTools(): Promise<void> {
  const missing = Object.entries(packages).filter(([file]) => !existsSync(file));
  if (missing.length === 0) return;
  const names = missing.map(([, name]) => name);
  if (process.getuid?.() !== 0) {
    console.error(`Some tests need: sudo apt-get install ${names.join(' ')}`);
    return;
  }
  console.log(`Installing for the tests: ${names.join(', ')} …`);
  const apt = (...args: string[]) =>
    spawnSync('apt-get', ['-y', '-qq', ...args], {
      stdio: ['ignore', 'ignore', 'inherit'],
      env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
    });
  apt('update');
  apt('install', '--no-install-recommends', ...names);
}
