// An XFS that can share blocks, on a loop device: needs root and xfsprogs.
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);

export interface ReflinkMount {
  path: string;
  usedBytes(): Promise<number>;
  close(): Promise<void>;
}

/** `undefined` where this machine cannot. */
export async function openReflinkMount(sizeGb: number): Promise<ReflinkMount | undefined> {
  if (process.getuid?.() !== 0) return undefined;
  const directory = await mkdtemp(join(tmpdir(), 'coppice-bench-xfs-'));
  const image = join(directory, 'image');
  const path = join(directory, 'mount');
  await writeFile(image, '');
  await truncate(image, sizeGb * 2 ** 30);
  await mkdir(path);
  try {
    await run('mkfs.xfs', ['-q', '-m', 'reflink=1', image]);
    await run('mount', ['-o', 'loop', image, path]);
  } catch {
    await rm(directory, { recursive: true, force: true });
    return undefined;
  }
  return {
    path,
    async usedBytes() {
      await run('sync', ['-f', path]);
      const { stdout } = await run('df', ['-B1', '--output=used', path]);
      return Number(stdout.trim().split('\n')[1]);
    },
    async close() {
      await run('umount', [path]);
      await rm(directory, { recursive: true, force: true });
    },
  };
}
