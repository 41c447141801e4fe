// What the tests need besides npm packages: real clients and a real browser from Debian. Root
// installs them; an ordinary user is told once, before the tests that need them fail.
import { spawnSync } from 'node:child_process';
import { existsSync, globSync } from 'node:fs';

/** A file (or pattern) that the package brings → the package. */
const packages: Record<string, string> = {
  '/usr/bin/psql': 'postgresql-client',
  // Its server comes along; only pgbench is used.
  '/usr/lib/postgresql/*/bin/pgbench': 'postgresql',
  '/usr/lib/python3/dist-packages/psycopg2': 'python3-psycopg2',
  // Java itself is too large to install for one test: that one runs where there is a JDK.
  ...(existsSync('/usr/bin/javac')
    ? { '/usr/share/java/postgresql.jar': 'libpostgresql-jdbc-java' }
    : {}),
  '/usr/bin/bwrap': 'bubblewrap',
  '/usr/bin/chromium': 'chromium',
};

export async function ensureTestTools(): Promise<void> {
  const missing = Object.entries(packages).filter(([file]) => globSync(file).length === 0);
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
