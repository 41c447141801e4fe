// What a start finds after the last service ended badly.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { statSync } from 'node:fs';
import { chmod, chown, mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, test } from 'vitest';
import { DataDirectoryInUse } from './layout.ts';
import { openTestFleet, type TestFleet, testCacheDir } from './open-test-fleet.ts';

const program = resolve(fileURLToPath(import.meta.url), '../test-fleet-process.ts');
const isRoot = process.getuid?.() === 0;
const cleanUps: (() => unknown)[] = [];

afterEach(async () => {
  for (const cleanUp of cleanUps.splice(0).toReversed()) await cleanUp();
});

async function temporaryDirectory(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'coppice-reconcile-'));
  cleanUps.push(() => rm(path, { recursive: true, force: true }));
  return path;
}

interface Made {
  id: string;
  pid: number;
  uid: number;
}

async function startProcess(
  dataDir: string,
  options: { cacheDir?: string; count?: number; uid?: number } = {},
): Promise<{ child: ChildProcess; databases: Made[] }> {
  const { uid } = options;
  const child = spawn(
    process.execPath,
    [program, dataDir, options.cacheDir ?? testCacheDir, String(options.count ?? 3)],
    {
      stdio: ['pipe', 'pipe', 'inherit'],
      cwd: '/',
      env: { PATH: process.env.PATH },
      ...(uid === undefined ? {} : { uid, gid: uid }),
    },
  );
  cleanUps.push(() => child.kill('SIGKILL'));
  const [line] = await Promise.race([
    once(createInterface(child.stdout!), 'line'),
    once(child, 'exit').then(() => Promise.reject(new Error('the process ended early'))),
  ]);
  return { child, databases: JSON.parse(line as string) };
}

async function open(dataDir: string): Promise<TestFleet> {
  const running = await openTestFleet({ dataDir });
  cleanUps.push(() => running.close());
  return running;
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

describe('after kill -9 of the service', () => {
  test('its servers are ended, and every database is there with its data', async () => {
    const dataDir = await temporaryDirectory();
    const { child, databases } = await startProcess(dataDir);
    child.kill('SIGKILL');
    await once(child, 'exit');
    expect(databases.every(({ pid }) => isAlive(pid))).toBe(true);

    const { fleet, query } = await open(dataDir);
    expect(databases.filter(({ pid }) => isAlive(pid))).toEqual([]);
    await fleet.reconcile(new Set(databases.map(({ id }) => id)));
    for (const [index, { id }] of databases.entries())
      expect(await query(id, 'select a from t')).toEqual([{ a: index }]);
  });

  test('half-made directories go, and so do directories without a row', async () => {
    const dataDir = await temporaryDirectory();
    const first = await openTestFleet({ dataDir });
    const [kept, untouched, used] = [
      await first.create(),
      await first.create(),
      await first.create(),
    ];
    await first.query(used, 'select 1');
    await first.fleet.prepareDraft();
    await mkdir(join(first.host.layout.pool, 'half/data'), { recursive: true });
    await mkdir(join(first.host.layout.trash, 'old'), { recursive: true });
    await first.close({ keepData: true });

    const { fleet, host, query } = await open(dataDir);
    expect(await readdir(host.layout.drafts)).toEqual([]);
    expect(await readdir(host.layout.pool)).toEqual([]);
    await fleet.reconcile(new Set([kept, 'db_missing']));
    expect(await readdir(host.layout.instances)).toEqual([kept]);
    // One that was in use may be there because the service was given the wrong control database.
    const trash = await readdir(host.layout.trash);
    expect(trash).toContain(`lost-${used}`);
    expect(trash.some((name) => name.includes(untouched))).toBe(false);
    expect(await query(kept, 'select 1 as one')).toEqual([{ one: 1 }]);
    await expect(fleet.wake('db_missing')).rejects.toMatchObject({ status: 404 });
  });

  test('uids on disk are not given out again', async () => {
    const dataDir = await temporaryDirectory();
    const first = await openTestFleet({ dataDir });
    const ids = [await first.create(), await first.create()];
    const before = await Promise.all(ids.map((id) => first.fleet.owner(id)));
    await first.close({ keepData: true });
    const { fleet, create } = await open(dataDir);
    const third = await fleet.owner(await create());
    if (isRoot) expect(before.map((owner) => owner?.uid)).not.toContain(third?.uid);
    else expect(third).toBeUndefined();
  });
});

test('two services cannot share a data directory', async () => {
  const dataDir = await temporaryDirectory();
  const { child, databases } = await startProcess(dataDir, { count: 1 });
  await expect(openTestFleet({ dataDir })).rejects.toBeInstanceOf(DataDirectoryInUse);
  // The one that was refused must not have touched the other's servers.
  expect(isAlive(databases[0]!.pid)).toBe(true);
  child.stdin!.end();
  await once(child, 'exit');
  expect(isAlive(databases[0]!.pid)).toBe(false);
  const { query } = await open(dataDir);
  expect(await query(databases[0]!.id, 'select a from t')).toEqual([{ a: 0 }]);
});

test('a shell that stands in the data directory is left alone', async () => {
  const dataDir = await temporaryDirectory();
  const first = await openTestFleet({ dataDir });
  const id = await first.create();
  await first.close({ keepData: true });
  const shell = spawn('sleep', ['60'], { cwd: first.fleet.paths(id).root, stdio: 'ignore' });
  cleanUps.push(() => shell.kill());
  await once(shell, 'spawn');
  await open(dataDir);
  expect(isAlive(shell.pid!)).toBe(true);
});

/** A clone below a closed directory (/root) is out of reach for everyone else. */
function othersReach(path: string): boolean {
  const parent = dirname(path);
  return (statSync(path).mode & 0o001) !== 0 && (parent === path || othersReach(parent));
}
const canRunAsOther =
  isRoot && othersReach(dirname(program)) && othersReach(dirname(process.execPath));

test.runIf(canRunAsOther)('an ordinary user runs it, too', async () => {
  const dataDir = await temporaryDirectory();
  const uid = 65_534;
  await chmod(dataDir, 0o755);
  const home = join(dataDir, 'home');
  await mkdir(home);
  await writeFile(join(home, 'keep'), '');
  await chown(home, uid, uid);
  const { child, databases } = await startProcess(join(home, 'data'), {
    cacheDir: join(home, 'cache'),
    count: 2,
    uid,
  });
  expect(databases.map((database) => database.uid)).toEqual([uid, uid]);
  child.stdin!.end();
  await once(child, 'exit');
  expect(databases.filter(({ pid }) => isAlive(pid))).toEqual([]);
});
