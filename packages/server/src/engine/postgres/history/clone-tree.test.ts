import { chmod, mkdir, mkdtemp, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { createClonePool } from './clone-pool.ts';
import { cloneTree } from './clone-tree.ts';

const pool = createClonePool(2);
let root: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'coppice-clone-'));
  const source = join(root, 'source');
  await mkdir(join(source, 'a/b'), { recursive: true });
  await mkdir(join(source, 'skipped'));
  for (let i = 0; i < 60; i++) await writeFile(join(source, `a/b/${i}`), `content ${i}`);
  await writeFile(join(source, 'large'), Buffer.alloc(3_500_001, 7));
  await writeFile(join(source, 'skipped/file'), 'x');
  await chmod(join(source, 'large'), 0o640);
  await symlink('/etc/passwd', join(source, 'link'));
});
afterAll(async () => {
  await pool.close();
  await rm(root, { recursive: true, force: true });
});

it('copies content and modes, leaves out what it is told to, and everything that is no file', async () => {
  const target = join(root, 'copy');
  await cloneTree(pool, join(root, 'source'), target, {
    skip: (path) => path.startsWith('skipped'),
  });
  for (let i = 0; i < 60; i++)
    expect(await readFile(join(target, `a/b/${i}`), 'utf8')).toBe(`content ${i}`);
  expect((await readFile(join(target, 'large'))).equals(Buffer.alloc(3_500_001, 7))).toBe(true);
  expect((await stat(join(target, 'large'))).mode & 0o777).toBe(0o640);
  await expect(stat(join(target, 'skipped'))).rejects.toThrow('ENOENT');
  await expect(stat(join(target, 'link'))).rejects.toThrow('ENOENT');
});

it.runIf(process.getuid?.() === 0)('gives everything to the owner', async () => {
  const target = join(root, 'owned');
  await cloneTree(pool, join(root, 'source'), target, { owner: { uid: 4242, gid: 4243 } });
  for (const path of ['', 'a', 'a/b', 'a/b/7', 'large'])
    expect(await stat(join(target, path))).toMatchObject({ uid: 4242, gid: 4243 });
});

it('links the same files under other names', async () => {
  const target = join(root, 'linked');
  await cloneTree(pool, join(root, 'source'), target, { kind: 'link' });
  const [a, b] = [join(root, 'source/large'), join(target, 'large')];
  expect((await stat(a)).ino).toBe((await stat(b)).ino);
});

it('fails as a whole when a file cannot be copied', async () => {
  const target = join(root, 'blocked');
  await mkdir(join(target, 'a/b/3'), { recursive: true });
  await expect(cloneTree(pool, join(root, 'source'), target)).rejects.toThrow();
});

it('stops when it is told to', async () => {
  const abort = AbortSignal.abort(new Error('enough'));
  const copying = cloneTree(pool, join(root, 'source'), join(root, 'aborted'), { signal: abort });
  await expect(copying).rejects.toThrow('enough');
});
