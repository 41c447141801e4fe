// What the tests need besides npm packages: real clients, the sandbox and a browser, from Debian.
// Root installs what is missing. An ordinary user gets the packages unpacked in a private directory,
// with wrappers that find the libraries there, put first on PATH.
import { spawnSync } from 'node:child_process';
import { existsSync, globSync, mkdirSync, writeFileSync } from 'node:fs';
import { basename, delimiter, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = resolve(fileURLToPath(import.meta.url), '../..');
const privateRoot = join(root, 'node_modules/.cache/debian');
const wrappers = join(privateRoot, 'wrappers');

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

/** Programs of the private directory that get a wrapper, by where Debian puts the real ones. */
const programs = [
  '/usr/lib/postgresql/*/bin/psql',
  '/usr/lib/postgresql/*/bin/pgbench',
  '/usr/bin/bwrap',
  '/usr/lib/chromium/chromium',
];

export function ensureTestTools(): void {
  const isMissing = (pattern: string) => globSync(pattern).length === 0;
  const missing = Object.entries(packages).filter(([pattern]) => isMissing(pattern));
  if (missing.length > 0) {
    const names = missing.map(([, name]) => name);
    if (process.getuid?.() === 0) installForAll(names);
    else if (missing.some(([pattern]) => isMissing(join(privateRoot, pattern))))
      unpackPrivately(names);
  }
  process.env.PATH = `${wrappers}${delimiter}${process.env.PATH}`;
}

function installForAll(names: string[]): void {
  console.log(`Installing for the tests: ${names.join(', ')} …`);
  aptGet([], 'update');
  aptGet([], 'install', '--no-install-recommends', ...names);
}

function unpackPrivately(names: string[]): void {
  console.log(`Unpacking for the tests: ${names.join(', ')} …`);
  const apt = join(privateRoot, 'apt');
  for (const directory of ['lists/partial', 'cache/archives/partial'])
    mkdirSync(join(apt, directory), { recursive: true });
  const options = [
    `Dir::State::lists=${apt}/lists`,
    `Dir::Cache=${apt}/cache`,
    `Dir::Cache::archives=${apt}/cache/archives`,
    'Debug::NoLocking=1',
  ].flatMap((option) => ['-o', option]);
  aptGet(options, 'update');
  aptGet(options, 'install', '--download-only', '--no-install-recommends', ...names);
  for (const archive of globSync(`${apt}/cache/archives/*.deb`))
    spawnSync('dpkg-deb', ['-x', archive, privateRoot], { stdio: ['ignore', 'ignore', 'inherit'] });
  writeWrappers();
}

function writeWrappers(): void {
  const libraries = globSync(`${privateRoot}/{usr/,}lib/*-linux-gnu`).join(':');
  const modules = join(privateRoot, 'usr/lib/python3/dist-packages');
  mkdirSync(wrappers, { recursive: true });
  const wrap = (name: string, program: string) => {
    const lines = [
      '#!/bin/sh',
      `export LD_LIBRARY_PATH='${libraries}' PYTHONPATH='${modules}'`,
      `exec '${program}' "$@"`,
    ];
    writeFileSync(join(wrappers, name), `${lines.join('\n')}\n`, { mode: 0o755 });
  };
  for (const program of programs.flatMap((pattern) => globSync(join(privateRoot, pattern))))
    wrap(basename(program), program);
  wrap('debian-python3', '/usr/bin/python3');
}

function aptGet(options: string[], ...args: string[]): void {
  const { status } = spawnSync('apt-get', ['-y', '-qq', ...options, ...args], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
  });
  if (status !== 0) console.error(`apt-get ${args[0]} failed; tests that need it will fail`);
}
