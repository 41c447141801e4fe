import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { zipSync } from 'fflate';
import { afterAll, expect, test } from 'vitest';
import { CompileError, compileBundle } from './compile.ts';

const directory = mkdtempSync(join(tmpdir(), 'coppice-compile-test-'));
afterAll(() => rmSync(directory, { recursive: true }));

const text = (content: string) => Buffer.from(content);

/** What the compiled code exports, as a sandbox would see it. */
async function load(bytes: Buffer, moduleName = 'index', isTypeScript = false) {
  const { code } = await compileBundle(bytes, moduleName, isTypeScript);
  const module = { exports: {} as Record<string, (...args: unknown[]) => unknown> };
  new Function('module', 'exports', 'require', code.toString())(module, module.exports, () => ({}));
  return module.exports;
}

function tarball(files: Record<string, string>, ...extra: string[]): Buffer {
  const root = mkdtempSync(join(directory, 'tar-'));
  for (const [name, content] of Object.entries(files)) {
    mkdirSync(dirname(join(root, name)), { recursive: true });
    writeFileSync(join(root, name), content);
  }
  return execFileSync('tar', ['-C', root, '-cz', ...extra, ...Object.keys(files)]);
}

const zip = (files: Record<string, string>) =>
  Buffer.from(zipSync(Object.fromEntries(Object.entries(files).map(([k, v]) => [k, text(v)]))));

test('a single module in any dialect', async () => {
  expect((await load(text('export const handler = () => 1'))).handler!()).toBe(1);
  expect((await load(text('exports.handler = () => 2'))).handler!()).toBe(2);
  expect((await load(text('module.exports = { handler: () => 3 }'))).handler!()).toBe(3);
  const typed = text('type A = number; export const handler = (a: A): A => a + 1;');
  expect((await load(typed)).handler!(3)).toBe(4);
  expect((await load(typed, 'index', true)).handler!(3)).toBe(4);
});

test('archives: modules that import each other, packages inside', async () => {
  const files = {
    'src/main.ts': `import { two } from './lib/two'; import three from 'three'; import data from './data.json';
      export const handler = () => two + three + data.n`,
    'src/lib/two.ts': 'export const two: number = 2',
    'src/data.json': '{"n": 10}',
    'node_modules/three/package.json': '{"name":"three","main":"lib.js"}',
    'node_modules/three/lib.js': 'module.exports = 3',
  };
  expect((await load(tarball(files), 'src/main')).handler!()).toBe(15);
  expect((await load(zip(files), 'src/main')).handler!()).toBe(15);
  const nested = tarball({ 'pack/index.mjs': 'export const handler = () => 7' });
  expect((await load(nested)).handler!()).toBe(7);
});

test('top-level await becomes an ES module', async () => {
  const { format } = await compileBundle(
    text('const a = await Promise.resolve(1); export const handler = () => a'),
    'index',
    false,
  );
  expect(format).toBe('esm');
});

test.each([
  ['a syntax error', () => text('export const handler = ('), /cannot be compiled/],
  [
    'a package that is not there',
    () => text("import x from 'lodash'; x()"),
    /lodash is not in the bundle/,
  ],
  ['a file of the host', () => text("import x from '/etc/hostname'; x()"), /outside the bundle/],
  [
    'a way up',
    () => text('import x from "../../../etc/hostname"; x()'),
    /not in the bundle|outside/,
  ],
  [
    'remote code',
    () => text("import x from 'https://example.com/x.js'; x()"),
    /only files of the bundle/,
  ],
  [
    'a data: import',
    () => text("import x from 'data:text/javascript,1'; x()"),
    /only files of the bundle/,
  ],
  ['a missing entry module', () => tarball({ 'other.js': '1' }), /no module index/],
  ['an archive without files', () => zip({ 'folder/': '' }), /no files/],
  [
    'bytes that only look like gzip',
    () => Buffer.from([0x1f, 0x8b, 1, 2, 3]),
    /not a readable archive/,
  ],
  [
    'a cut archive',
    () => tarball({ 'index.js': 'x'.repeat(9999) }).subarray(0, 60),
    /not a readable/,
  ],
  ['a zip that leads out', () => zip({ '../index.js': '1', 'index.js': '1' }), /outside itself/],
  ['an absolute name', () => zip({ '/etc/x.js': '1', 'index.js': '1' }), /outside itself/],
  [
    'a native add-on',
    () => zip({ 'index.js': "require('./a.node')", 'a.node': 'x' }),
    /cannot be compiled/,
  ],
])('%s is refused', async (_name, bundle, message) => {
  const failure = compileBundle(bundle(), 'index', false);
  await expect(failure).rejects.toThrow(CompileError);
  await expect(failure).rejects.toThrow(message);
});

test('links in an archive are left out', async () => {
  const root = mkdtempSync(join(directory, 'link-'));
  symlinkSync('/etc/hostname', join(root, 'secret.txt'));
  writeFileSync(
    join(root, 'index.js'),
    "import s from './secret.txt'; export const handler = () => s",
  );
  const bytes = execFileSync('tar', ['-C', root, '-cz', 'index.js', 'secret.txt']);
  await expect(compileBundle(bytes, 'index', false)).rejects.toThrow(/not in the bundle/);
});

test('bombs are refused', async () => {
  const big = Buffer.alloc(140 * 1024 * 1024);
  await expect(
    compileBundle(Buffer.from(zipSync({ 'index.js': big }, { level: 1 })), 'index', false),
  ).rejects.toThrow(/unpacks to more than/);
  const header = Buffer.alloc(512);
  header.write('index.js');
  header.write('0000644\0', 100);
  header.write(`${big.length.toString(8).padStart(11, '0')}\0`, 124);
  header.write('        ', 148);
  header.write('0', 156);
  header.write('ustar\x0000', 257);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
  await expect(
    compileBundle(gzipSync(Buffer.concat([header, big])), 'index', false),
  ).rejects.toThrow(/unpacks to more than/);
});
