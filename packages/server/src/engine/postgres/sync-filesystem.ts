import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** Brings everything written to the filesystem of `path` to disk: one call, however many files. */
export async function syncFilesystem(path: string): Promise<void> {
  const args = process.platform === 'linux' ? ['-f', path] : [];
  await run('sync', args, { timeout: 120_000 });
}
