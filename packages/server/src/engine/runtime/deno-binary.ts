// The Deno binary that npm brought, at a path an unprivileged user can reach.
import { execFile } from 'node:child_process';
import { copyFile, link, mkdir, rename, rm, stat } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { basename, dirname, join } from 'node:path';
import { promisify } from 'node:util';

const packages: Record<string, string> = {
  'linux-arm64': '@deno/linux-arm64-glibc',
  'linux-x64': '@deno/linux-x64-glibc',
  'darwin-arm64': '@deno/darwin-arm64',
};

/** Undefined on a platform that Deno is not brought for. */
export function findDeno(): { path: string; version: string } | undefined {
  const name = packages[`${process.platform}-${process.arch}`];
  if (!name) return undefined;
  try {
    const require = createRequire(import.meta.url);
    const manifest = require.resolve(`${name}/package.json`);
    const { version } = require(manifest) as { version: string };
    return { path: join(dirname(manifest), 'deno'), version };
  } catch {
    return undefined;
  }
}

/** Whether a user who owns nothing on the way can execute the file. */
export async function isReachable(file: string): Promise<boolean> {
  if (((await stat(file)).mode & 0o005) !== 0o005) return false;
  for (let directory = dirname(file); ; directory = dirname(directory)) {
    if (((await stat(directory)).mode & 0o001) === 0) return false;
    if (directory === dirname(directory)) return true;
  }
}

/** Hard-links the file into `directory` under a name with its version; copies across devices. */
export async function placeIn(directory: string, file: string, version: string): Promise<string> {
  const target = join(directory, `${basename(file)}-${version}`);
  const source = await stat(file);
  const present = await stat(target).catch(() => undefined);
  if (present && present.size === source.size) return target;
  await mkdir(directory, { recursive: true, mode: 0o711 });
  const partial = `${target}.${process.pid}`;
  await rm(partial, { force: true });
  await link(file, partial).catch(() => copyFile(file, partial));
  await rename(partial, target);
  return target;
}

/** The shared libraries that a binary loads, and the loader itself. */
export async function librariesOf(binary: string): Promise<string[]> {
  const { stdout } = await promisify(execFile)('ldd', [binary], { timeout: 10_000 });
  const paths = stdout.split('\n').flatMap((line) => /(\/\S+) \(0x/.exec(line)?.[1] ?? []);
  return [...new Set(paths)].filter((path) => path !== binary);
}
