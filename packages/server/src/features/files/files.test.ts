// Longer than other files: every case shares one running database, whose start costs more than the cases.
// The files of a real database, without the WebSocket: test/conformance/files.test.ts has that.
import { createHash } from 'node:crypto';
import type { FileEvent } from '@coppice/contract';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openTestEngine, type TestEngine } from '../../engine/postgres/history/open-test-engine.ts';
import { openTestFleet } from '../../engine/postgres/open-test-fleet.ts';
import type { Files, FilesActor } from '../../kernel/files.ts';
import { createLogger } from '../../kernel/logger.ts';
import { createFiles, type FilesFeature } from './index.ts';

const limits = { quotaBytes: 64 << 20, operationsAtOnce: 4, streamsAtOnce: 4 };
let running: TestEngine;
let feature: FilesFeature;
let files: Files;
let admin: FilesActor;

beforeAll(async () => {
  running = await openTestEngine();
  feature = createFiles({ engine: running.engine, logger: createLogger('silent'), limits });
  files = feature.service;
  admin = { databaseId: await running.create(), role: 'admin' };
});
afterAll(async () => {
  await feature.close();
  await running.close();
});

const code = (code: string) => expect.objectContaining({ code });
const sql = (text: string, role = 'admin') => running.query(admin.databaseId, text, role);
async function* source(...pieces: (Buffer | Error)[]): AsyncGenerator<Buffer> {
  for (const piece of pieces) {
    if (piece instanceof Error) throw piece;
    yield piece;
  }
}
const write = (path: string, text: string) =>
  files.write(admin, { operation: 'write', path }, Buffer.from(text));
const pattern = (length: number, seed: number) =>
  Buffer.alloc(length, createHash('sha256').update(String(seed)).digest());
const leftovers = async () =>
  sql(
    `select count(*)::int as chunks from coppice.fs_chunks
     where content_id not in (select content_id from coppice.fs_entries)`,
    'postgres',
  );

describe('paths', () => {
  test.each([
    ['relative', 'a/b'],
    ['empty', ''],
    ['through the parent', '/a/../b'],
    ['ending in the parent', '/..'],
    ['with NUL', '/a\0b'],
    ['with half a character', '/\ud800'],
    ['with a name of 256 bytes', `/${'n'.repeat(256)}`],
    ['with a name of 128 characters and 256 bytes', `/${'é'.repeat(128)}`],
    ['of 4097 bytes', '/abc'.repeat(1025)],
  ])('%s: EINVAL, whatever the operation', async (_, path) => {
    const content = Buffer.from('x');
    const attempts = [
      files.stat(admin, path),
      files.readdir(admin, path),
      files.read(admin, path),
      files.readStream(admin, path, {}, async () => {}),
      files.write(admin, { operation: 'write', path, parents: true }, content),
      files.write(admin, { operation: 'append', path }, content),
      files.write(admin, { operation: 'pwrite', path, offset: 0 }, content),
      files.writeStream(admin, { operation: 'write', path, parents: true }, source(content)),
      files.batchWrite(admin, [{ path, content }]),
      files.truncate(admin, path, 0),
      files.mkdir(admin, path, { recursive: true }),
      files.unlink(admin, path),
      files.rm(admin, path, { force: true }),
      files.rename(admin, path, '/elsewhere'),
      files.rename(admin, '/', path),
      files.symlink(admin, path, 'x'),
      files.readlink(admin, path),
      files.chmod(admin, path, 0o600),
      files.watch(admin, path, {}, () => {}),
    ];
    for (const outcome of await Promise.allSettled(attempts))
      expect(outcome).toMatchObject({ status: 'rejected', reason: code('EINVAL') });
    expect(await sql('select * from fs.files')).toEqual([]);
  });

  test('names are bytes: composed and decomposed characters differ, any other is kept', async () => {
    const names = [
      'é',
      'e\u0301',
      '日本語',
      '👩‍👩‍👧',
      ' ',
      '\\',
      "it's; --",
      '\n',
      '\u0001',
      'İ',
      'ss',
      'ß',
    ];
    await files.mkdir(admin, '/names');
    for (const name of names) await write(`/names/${name}`, name);
    const listing = await files.readdir(admin, '/names');
    expect(listing.entries.map((entry) => entry.name)).toEqual(
      [...names].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b))),
    );
    for (const name of names)
      expect((await files.read(admin, `/names/${name}`)).toString()).toBe(name);
    await files.rm(admin, '/names', { recursive: true });
  });

  test('a directory of many is listed in pages', async () => {
    await files.batchWrite(
      admin,
      Array.from({ length: 25 }, (_, i) => ({
        path: `/many/${String(i).padStart(2, '0')}`,
        content: Buffer.alloc(0),
        parents: true,
      })),
    );
    const first = await files.readdir(admin, '/many', { limit: 10 });
    expect(first.next).toBe('09');
    const second = await files.readdir(admin, '/many', { limit: 20, after: first.next! });
    expect([...first.entries, ...second.entries].map((entry) => Number(entry.name))).toEqual(
      Array.from({ length: 25 }, (_, i) => i),
    );
    expect(second.next).toBeNull();
  });

  test('the deepest path there can be', async () => {
    const path = '/d'.repeat(2048);
    await files.mkdir(admin, path, { recursive: true });
    expect(await files.stat(admin, path)).toMatchObject({ path, type: 'directory' });
    await files.symlink(admin, '/deep', path.slice(0, -2));
    await expect(write('/deep/dd', 'one byte too many')).rejects.toEqual(code('EINVAL'));
    await files.rm(admin, '/d', { recursive: true });
  });
});

describe('streams', () => {
  test('come back as they went in, whole and in part', async () => {
    const content = Buffer.concat([pattern(3_000_001, 1), pattern(777, 2)]);
    await files.writeStream(
      admin,
      { operation: 'write', path: '/stream' },
      source(content.subarray(0, 1), content.subarray(1, 2_000_000), content.subarray(2_000_000)),
    );
    const ranges = [
      {},
      { offset: 65_536 },
      { offset: 1_000_003, length: 1_500_000 },
      { offset: 9e9 },
    ];
    for (const range of ranges) {
      const pieces = await files.readStream(admin, '/stream', range, async (file) => {
        const all: Buffer[] = [];
        for await (const piece of file.chunks) all.push(piece);
        expect(Buffer.concat(all).length).toBe(file.length);
        return Buffer.concat(all);
      });
      const { offset = 0, length = content.length } = range as { offset?: number; length?: number };
      expect(pieces.equals(content.subarray(offset, offset + length))).toBe(true);
    }
  });

  test('a reader sees one instant, whatever is written meanwhile', async () => {
    const before = pattern(3_000_000, 3);
    await files.writeStream(admin, { operation: 'write', path: '/instant' }, source(before));
    const seen = await files.readStream(admin, '/instant', {}, async (file) => {
      const all: Buffer[] = [];
      for await (const piece of file.chunks) {
        if (all.length === 0) {
          await files.write(
            admin,
            { operation: 'pwrite', path: '/instant', offset: 2_900_000 },
            Buffer.from('x'),
          );
          await files.unlink(admin, '/instant');
        }
        all.push(piece);
      }
      return Buffer.concat(all);
    });
    expect(seen.equals(before)).toBe(true);
  });

  test('one that breaks off leaves nothing, neither of the old file nor of the new', async () => {
    await write('/kept', 'old');
    const before = await sql('select fs.logical_bytes() as bytes');
    const broken = () => source(pattern(2_000_000, 4), new Error('the client went away'));
    for (const path of ['/kept', '/never'])
      await expect(
        files.writeStream(admin, { operation: 'write', path, parents: true }, broken()),
      ).rejects.toEqual(code('EIO'));
    expect((await files.read(admin, '/kept')).toString()).toBe('old');
    await expect(files.stat(admin, '/never')).rejects.toEqual(code('ENOENT'));
    expect(await sql('select fs.logical_bytes() as bytes')).toEqual(before);
    expect(await leftovers()).toEqual([{ chunks: 0 }]);
  });

  test('one that cannot end well is refused before anything is sent', async () => {
    await files.mkdir(admin, '/directory');
    const untouched = {
      [Symbol.asyncIterator]: () => {
        throw new Error('asked for content');
      },
    };
    const attempt = (path: string, operation: 'write' | 'pwrite' = 'write') =>
      files.writeStream(admin, { operation, path, offset: 0 }, untouched);
    await expect(attempt('/directory')).rejects.toEqual(code('EISDIR'));
    await expect(attempt('/missing/file')).rejects.toEqual(code('ENOENT'));
    await expect(attempt('/kept/file')).rejects.toEqual(code('ENOTDIR'));
    await expect(attempt('/missing', 'pwrite')).rejects.toEqual(code('ENOENT'));
  });

  test('append and pwrite, aligned with the chunks and not', async () => {
    for (const start of [0, 100, 65_536, 200_000]) {
      let expected = pattern(start, 5);
      await files.write(admin, { operation: 'write', path: '/grown' }, expected);
      const more = pattern(150_000, 6);
      await files.writeStream(admin, { operation: 'append', path: '/grown' }, source(more));
      expected = Buffer.concat([expected, more]);
      const over = pattern(100_000, 7);
      const offset = 40_000;
      await files.writeStream(admin, { operation: 'pwrite', path: '/grown', offset }, source(over));
      expected = Buffer.concat([
        expected.subarray(0, offset),
        over,
        expected.subarray(offset + over.length),
      ]);
      expect((await files.read(admin, '/grown')).equals(expected)).toBe(true);
    }
    expect(await leftovers()).toEqual([{ chunks: 0 }]);
  });
});

describe('writers at the same time', () => {
  test('one path ends as one of them, whole', async () => {
    const contents = Array.from({ length: 8 }, (_, i) => pattern(300_000 + i, 100 + i));
    await Promise.all(
      contents.map((content, i) =>
        i % 2
          ? files.writeStream(admin, { operation: 'write', path: '/contended' }, source(content))
          : files.write(admin, { operation: 'write', path: '/contended' }, content),
      ),
    );
    const final = await files.read(admin, '/contended');
    expect(contents.filter((content) => content.equals(final))).toHaveLength(1);
    expect(await leftovers()).toEqual([{ chunks: 0 }]);
  });

  test('appends are all there', async () => {
    const lines = Array.from({ length: 40 }, (_, i) => `line ${i}\n`);
    await Promise.all(
      lines.map((line) =>
        files.write(admin, { operation: 'append', path: '/log' }, Buffer.from(line)),
      ),
    );
    const found = (await files.read(admin, '/log')).toString().split(/(?<=\n)/);
    expect(found.sort()).toEqual(lines.sort());
  });

  test('renames across each other make no cycle and lose nothing', async () => {
    await files.mkdir(admin, '/p/q', { recursive: true });
    await files.mkdir(admin, '/r/s', { recursive: true });
    for (let round = 0; round < 10; round++) {
      await Promise.allSettled([
        files.rename(admin, '/p', '/r/s/p'),
        files.rename(admin, '/r', '/p/q/r'),
      ]);
      const reachable = await sql(
        `select count(*)::int as n from fs.files where path ~ '^/(p|r)(/|$)'`,
      );
      expect(reachable).toEqual([{ n: 4 }]);
      await files.rename(admin, '/r/s/p', '/p').catch(() => {});
      await files.rename(admin, '/p/q/r', '/r').catch(() => {});
    }
  });

  test('one that holds the files for long costs the others an error, not for ever', async () => {
    const client = await running.connect(admin.databaseId);
    await client.query('begin');
    await client.query(`select fs.write_text('/held', 'x')`);
    await expect(write('/waiting', 'x')).rejects.toEqual(code('EIO'));
    expect((await files.stat(admin, '/')).type).toBe('directory');
    await client.query('rollback');
    await client.end();
  });
});

test('batches are all or nothing', async () => {
  const before = await sql('select fs.logical_bytes() as bytes');
  const batch = files.batchWrite(admin, [
    { path: '/batch/one', content: Buffer.from('1'), parents: true },
    { path: '/batch', content: Buffer.from('2') },
  ]);
  await expect(batch).rejects.toEqual(code('EISDIR'));
  await expect(files.stat(admin, '/batch')).rejects.toEqual(code('ENOENT'));
  expect(await sql('select fs.logical_bytes() as bytes')).toEqual(before);
});

test('the quota counts bytes, also of holes, and gives them back', async () => {
  const actor = { databaseId: await running.create(), role: 'admin' };
  const target = { operation: 'write' as const, path: '/file' };
  await files.write(actor, target, Buffer.from('x'));
  await expect(files.truncate(actor, '/file', limits.quotaBytes + 1)).rejects.toEqual(
    code('EFBIG'),
  );
  await files.truncate(actor, '/file', limits.quotaBytes);
  await expect(
    files.write(actor, { operation: 'append', path: '/file' }, Buffer.from('y')),
  ).rejects.toEqual(code('EFBIG'));
  await expect(files.write(actor, { ...target, path: '/b' }, Buffer.from('y'))).rejects.toEqual(
    code('EFBIG'),
  );
  await expect(
    files.writeStream(actor, { ...target, path: '/b' }, source(Buffer.from('y'))),
  ).rejects.toEqual(code('EFBIG'));
  await files.writeStream(actor, target, source(Buffer.from('small again')));
  await files.write(actor, { ...target, path: '/b' }, Buffer.from('y'));
  expect(await running.query(actor.databaseId, 'select fs.logical_bytes() as bytes')).toEqual([
    { bytes: '12' },
  ]);
});

describe('who may', () => {
  const as = (role: string): FilesActor => ({ ...admin, role });

  test('readonly reads and changes nothing', async () => {
    const actor = as('readonly');
    await write('/shared', 'text');
    expect((await files.read(actor, '/shared')).toString()).toBe('text');
    expect((await files.readdir(actor, '/')).entries.length).toBeGreaterThan(0);
    const content = Buffer.from('x');
    const attempts = [
      files.write(actor, { operation: 'write', path: '/shared' }, content),
      files.writeStream(actor, { operation: 'write', path: '/shared' }, source(content)),
      files.batchWrite(actor, [{ path: '/shared', content }]),
      files.truncate(actor, '/shared', 0),
      files.mkdir(actor, '/mine'),
      files.rm(actor, '/shared'),
      files.rename(actor, '/shared', '/mine'),
      files.symlink(actor, '/mine', 'shared'),
      files.chmod(actor, '/shared', 0),
    ];
    for (const outcome of await Promise.allSettled(attempts))
      expect(outcome).toMatchObject({ status: 'rejected', reason: code('EACCES') });
    expect((await files.read(admin, '/shared')).toString()).toBe('text');
  });

  test('another role may what it was granted', async () => {
    await sql('create role clerk login');
    const actor = as('clerk');
    await expect(files.stat(actor, '/')).rejects.toEqual(code('EACCES'));
    await expect(
      files.writeStream(actor, { operation: 'write', path: '/c' }, source(Buffer.from('x'))),
    ).rejects.toEqual(code('EACCES'));
    await sql('grant usage on schema fs to clerk; grant execute on function fs.stat to clerk');
    expect((await files.stat(actor, '/')).type).toBe('directory');
    await expect(files.readdir(actor, '/')).rejects.toEqual(code('EACCES'));
    await sql('grant execute on all functions in schema fs to clerk');
    await files.write(actor, { operation: 'write', path: '/c' }, Buffer.from('x'));
    await files.writeStream(actor, { operation: 'write', path: '/c' }, source(Buffer.from('y')));
  });

  test('nobody reaches the tables', async () => {
    for (const table of ['fs_entries', 'fs_chunks', 'fs_volume']) {
      await expect(sql(`delete from coppice.${table}`)).rejects.toThrow(/permission denied/);
      await expect(sql(`delete from coppice.${table}`, 'readonly')).rejects.toThrow();
    }
    await expect(sql(`select coppice.fs_store(1, 0, 'x')`)).rejects.toThrow(/permission denied/);
    await expect(sql('drop schema fs cascade')).rejects.toThrow(/must be owner/);
  });

  test('a caller that checks paths can have symbolic links refused', async () => {
    await write('/secret', 'secret');
    await files.mkdir(admin, '/public');
    await files.symlink(admin, '/public/link', '/secret');
    await files.symlink(admin, '/public/up', '..');
    const actor: FilesActor = { ...admin, symlinks: 'refuse' };
    const content = Buffer.from('x');
    const attempts = ['/public/link', '/public/up/secret'].flatMap((path) => [
      files.read(actor, path),
      files.readStream(actor, path, {}, async () => {}),
      files.write(actor, { operation: 'write', path }, content),
      files.writeStream(actor, { operation: 'write', path }, source(content)),
      files.batchWrite(actor, [{ path, content }]),
    ]);
    for (const outcome of await Promise.allSettled<unknown>(attempts))
      expect(outcome).toMatchObject({ status: 'rejected', reason: code('EACCES') });
    expect((await files.read(admin, '/public/link')).toString()).toBe('secret');
    expect((await files.readlink(actor, '/public/link')).toString()).toBe('/secret');
  });
});

describe('with SQL', () => {
  test('in one transaction with rows', async () => {
    await sql(`begin; create table docs (path text); insert into docs values ('/doc');
      select fs.write_text('/doc', 'körper'); rollback`);
    await expect(files.stat(admin, '/doc')).rejects.toEqual(code('ENOENT'));
    await sql(`begin; create table docs (path text); insert into docs values ('/doc');
      select fs.write_text('/doc', 'körper'); commit`);
    expect((await files.read(admin, '/doc')).toString()).toBe('körper');
    expect(await sql(`select fs.read_text(path) as text from docs`)).toEqual([{ text: 'körper' }]);
    expect(await sql(`select name, type, size::int from fs.list('/') where name = 'doc'`)).toEqual([
      { name: 'doc', type: 'file', size: 7 },
    ]);
    expect(await sql(`select path from fs.files where name = 'doc'`)).toEqual([{ path: '/doc' }]);
  });

  test('failures are SQLSTATEs', async () => {
    await expect(sql(`select fs.read('/nothing')`)).rejects.toMatchObject({ code: 'PX002' });
    await expect(sql(`select fs.read('/')`)).rejects.toMatchObject({ code: 'PX021' });
    await expect(sql(`select fs.write('/x', 'y', mode => -1)`)).rejects.toMatchObject({
      code: 'PX022',
    });
    await expect(sql(`select fs.truncate('/doc', -1)`)).rejects.toMatchObject({ code: 'PX022' });
    await expect(sql(`select fs.read('/doc', -1)`)).rejects.toMatchObject({ code: 'PX022' });
    await expect(sql(`select fs.stat(null)`)).rejects.toMatchObject({ code: 'PX022' });
  });
});

describe('watching', () => {
  function collector() {
    const events: FileEvent[] = [];
    let wake = () => {};
    return {
      events,
      listener(event: FileEvent) {
        events.push(event);
        wake();
      },
      async until(count: number) {
        while (events.length < count)
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
      },
    };
  }

  test('tells what changed, from whichever side, and nothing else', async () => {
    await files.mkdir(admin, '/w/inner', { recursive: true });
    await files.mkdir(admin, '/other', {});
    const all = collector();
    const shallow = collector();
    const stop = await files.watch(admin, '/w', {}, all.listener);
    const stopShallow = await files.watch(admin, '/w', { recursive: false }, shallow.listener);
    await write('/other/file', 'x');
    await write('/w/inner/file', 'x');
    await sql(`select fs.write_text('/w/inner/file', 'y')`);
    await sql(`begin; select fs.write_text('/w/rolled back', 'y'); rollback`);
    await files.rename(admin, '/w/inner/file', '/w/file');
    await files.rm(admin, '/w', { recursive: true });
    await all.until(4);
    await shallow.until(2);
    expect(all.events).toEqual([
      { type: 'created', path: '/w/inner/file' },
      { type: 'modified', path: '/w/inner/file' },
      { type: 'renamed', path: '/w/file', from: '/w/inner/file' },
      { type: 'deleted', path: '/w' },
    ]);
    expect(shallow.events).toEqual(all.events.slice(2));
    stop();
    stopShallow();
  });

  test('of names as long as they get', async () => {
    const long = `/${'ö'.repeat(127)}`.repeat(16);
    await files.mkdir(admin, `/l${long}`, { recursive: true });
    await files.mkdir(admin, `/m${long}`, { recursive: true });
    const changes = collector();
    const stop = await files.watch(admin, '/', {}, changes.listener);
    await files.rename(admin, `/l${long}`, `/m${long}/ö`);
    await changes.until(2);
    expect(changes.events).toEqual([
      { type: 'deleted', path: `/l${long}` },
      { type: 'created', path: `/m${long}/ö` },
    ]);
    stop();
  });

  test('goes on when its connection is cut', async () => {
    const changes = collector();
    const stop = await files.watch(admin, '/', {}, changes.listener);
    await sql(
      `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'coppice files'`,
      'postgres',
    );
    await write('/after-the-cut', 'x');
    await changes.until(1);
    expect(['created', 'rescan']).toContain(changes.events[0]!.type);
    stop();
  });

  test('holds no database awake, and goes on after its sleep', async () => {
    const { fleet, ...sleepy } = await openTestFleet({ idleSeconds: 1 });
    const slept = new Promise<string>((resolve) => fleet.onSleep(resolve));
    const own = createFiles({ engine: fleet, logger: createLogger('silent'), limits });
    try {
      const actor = { databaseId: await sleepy.create(), role: 'admin' };
      const changes = collector();
      await own.service.watch(actor, '/', {}, changes.listener);
      expect(await slept).toBe(actor.databaseId);
      await sleepy.query(actor.databaseId, `select fs.write_text('/awake', 'x')`);
      await changes.until(1);
      // Either it listened in time, or it says that it may have missed something.
      expect(['created', 'rescan']).toContain(changes.events[0]!.type);
    } finally {
      await own.close();
      await sleepy.close();
    }
  });
});

test('files and rows of a past instant are of the same instant', async () => {
  await sql(`create table versions (n int)`);
  await sql(
    `begin; insert into versions values (1); select fs.write_text('/version', '1'); commit`,
  );
  const [{ micros }] = (await sql(
    `select (extract(epoch from clock_timestamp()) * 1000000)::bigint::text as micros`,
  )) as [{ micros: string }];
  await sql(
    `begin; insert into versions values (2); select fs.write_text('/version', '2'); commit`,
  );
  await files.rm(admin, '/other', { recursive: true, force: true });
  const past = await running.branch(admin.databaseId, BigInt(micros));
  const actor = { databaseId: past, role: 'admin' };
  expect((await files.read(actor, '/version')).toString()).toBe('1');
  expect(await running.query(past, 'select max(n) as n from versions')).toEqual([{ n: 1 }]);
  const now = await running.branch(admin.databaseId);
  expect((await files.read({ databaseId: now, role: 'admin' }, '/version')).toString()).toBe('2');
});
