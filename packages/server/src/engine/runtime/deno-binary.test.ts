import { chmodSync, mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { findDeno, isReachable, librariesOf, placeIn } from './deno-binary.ts';

const directory = mkdtempSync(join(tmpdir(), 'coppice-deno-test-'));
chmodSync(directory, 0o755);
afterAll(() => rmSync(directory, { recursive: true }));

test('a binary below a closed directory is put where others can reach it', async () => {
  const closed = join(directory, 'closed');
  mkdirSync(closed, { mode: 0o700 });
  const binary = join(closed, 'tool');
  writeFileSync(binary, '#!/bin/sh\n', { mode: 0o755 });
  expect(await isReachable(binary)).toBe(false);
  const placed = await placeIn(join(directory, 'open'), binary, '1.0');
  expect(await isReachable(placed)).toBe(true);
  expect(statSync(placed).ino).toBe(statSync(binary).ino);
  expect(await placeIn(join(directory, 'open'), binary, '1.0')).toBe(placed);
});

test('Deno and what it loads are found', async () => {
  const deno = findDeno()!;
  expect(deno.version).toMatch(/^\d+\.\d+\.\d+$/);
  const libraries = await librariesOf(deno.path);
  expect(libraries.some((path) => /libc\.so/.test(path))).toBe(true);
  expect(libraries.some((path) => /ld-linux/.test(path))).toBe(true);
});
