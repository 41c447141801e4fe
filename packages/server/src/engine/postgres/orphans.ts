// Servers that outlived the service that started them (it was killed): found by the pid in
// postmaster.pid, recognised by their working directory, since pids are used again.

import { execFile } from 'node:child_process';
import { readFile, readlink, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** Ends the server that runs in `data`, if one does, and returns when it is gone. */
export async function endOrphan(data: string): Promise<boolean> {
  const pid = await postmasterOf(data);
  if (pid === null) return false;
  for (const [signal, graceMs] of [
    ['SIGINT', 5_000],
    ['SIGQUIT', 2_000],
    ['SIGKILL', 2_000],
  ] as const) {
    if (!send(pid, signal)) return true;
    if (await gone(pid, graceMs)) return true;
  }
  throw new Error(`the server with pid ${pid} in ${data} cannot be ended`);
}

async function postmasterOf(data: string): Promise<number | null> {
  const text = await readFile(join(data, 'postmaster.pid'), 'utf8').catch(() => null);
  const pid = Number(text?.split('\n')[0]);
  if (!Number.isInteger(pid) || pid <= 1 || !send(pid, 0)) return null;
  const home = await workingDirectory(pid);
  return home !== null && home === (await realpath(data)) ? pid : null;
}

async function workingDirectory(pid: number): Promise<string | null> {
  if (process.platform === 'linux') return readlink(`/proc/${pid}/cwd`).catch(() => null);
  const { stdout } = await run('lsof', ['-a', '-p', String(pid), '-d', 'cwd', '-Fn'], {
    timeout: 5_000,
  }).catch(() => ({ stdout: '' }));
  return /^n(.*)$/m.exec(stdout)?.[1] ?? null;
}

async function gone(pid: number, timeoutMs: number): Promise<boolean> {
  const deadline = Date.now() + timeoutMs;
  while (send(pid, 0)) {
    if (Date.now() > deadline) return false;
    await delay(5);
  }
  return true;
}

/** False when there is no such process. */
function send(pid: number, signal: NodeJS.Signals | 0): boolean {
  try {
    process.kill(pid, signal);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
