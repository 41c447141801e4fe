// Servers that nobody supervises: those of a service that was killed, and the backends that a killed
// server leaves for a moment. They are known by their name and their working directory, never by a
// pid in a file alone, since pids are used again.
import { execFile } from 'node:child_process';
import { readdir, readFile, readlink, realpath, unlink } from 'node:fs/promises';
import { join, sep } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);

interface ServerProcess {
  pid: number;
  workingDirectory: string;
}

/**
 * Ends every Postgres process that works in `directory` or below it, servers in an orderly way, and
 * returns how many servers there were.
 */
export async function endServersBelow(directory: string): Promise<number> {
  const top = await realpath(directory);
  const found = await serversBelow(top);
  if (found.length === 0) return 0;
  const isPostmaster = await Promise.all(found.map(async (one) => (await pidIn(one)) === one.pid));
  const postmasters = found.filter((_, i) => isPostmaster[i]);
  await Promise.all(postmasters.map(({ pid }) => endPostmaster(pid)));
  // Backends go with their server, unless it was killed before and they are busy.
  const rest = await serversBelow(top);
  for (const { pid } of rest) send(pid, 'SIGKILL');
  for (const { pid } of rest)
    if (!(await gone(pid, 5_000))) throw new Error(`process ${pid} in ${top} cannot be ended`);
  return postmasters.length;
}

/** Makes `data` ready for a start after a crash: nothing works in it, and no stale file says so. */
export async function clearLeftovers(data: string): Promise<void> {
  const file = join(data, 'postmaster.pid');
  const pid = await pidIn({ workingDirectory: data });
  if (pid === null) return;
  await endServersBelow(data);
  // Postgres would take another process that got the same pid for its own predecessor.
  if (send(pid, 0)) await unlink(file).catch(() => {});
}

async function endPostmaster(pid: number): Promise<void> {
  for (const [signal, graceMs] of [
    ['SIGINT', 5_000],
    ['SIGQUIT', 2_000],
  ] as const) {
    if (!send(pid, signal) || (await gone(pid, graceMs))) return;
  }
}

async function pidIn({ workingDirectory }: { workingDirectory: string }): Promise<number | null> {
  const text = await readFile(join(workingDirectory, 'postmaster.pid'), 'utf8').catch(() => null);
  const pid = Number(text?.split('\n')[0]);
  return Number.isInteger(pid) && pid > 1 ? pid : null;
}

async function serversBelow(top: string): Promise<ServerProcess[]> {
  const all = process.platform === 'linux' ? await serversOnLinux() : await serversByLsof();
  return all.filter(
    ({ workingDirectory }) => workingDirectory === top || workingDirectory.startsWith(top + sep),
  );
}

async function serversOnLinux(): Promise<ServerProcess[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  const found = await Promise.all(
    pids.map(async (pid) => {
      // Processes end while we look, and others' may not be looked at: both are none of ours.
      const name = await readFile(`/proc/${pid}/comm`, 'utf8').catch(() => '');
      if (name.trim() !== 'postgres') return null;
      const workingDirectory = await readlink(`/proc/${pid}/cwd`).catch(() => null);
      return workingDirectory === null ? null : { pid: Number(pid), workingDirectory };
    }),
  );
  return found.filter((one) => one !== null);
}

async function serversByLsof(): Promise<ServerProcess[]> {
  const { stdout } = await run('lsof', ['-a', '-c', 'postgres', '-d', 'cwd', '-Fpn'], {
    timeout: 10_000,
  }).catch(() => ({ stdout: '' }));
  return [...stdout.matchAll(/^p(\d+)\n(?:f.*\n)?n(.*)$/gm)].map((match) => ({
    pid: Number(match[1]),
    workingDirectory: match[2]!,
  }));
}

async function gone(pid: number, timeoutMs: number): Promise<boolean> {
  const deadline = Date.now() + timeoutMs;
  while (send(pid, 0)) {
    if (Date.now() > deadline) return false;
    await delay(3);
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
