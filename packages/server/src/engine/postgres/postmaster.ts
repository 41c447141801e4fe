// One running Postgres server: started directly (no pg_ctl), ready when its own status line says so,
// watched through its exit. It knows its data directory only as its working directory: no directory
// above need be open to its user, and the directory may be renamed while it runs.
import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { chmod, chown, mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Binaries } from './binaries.ts';
import type { Owner, Settings } from './fleet.ts';

export interface PostmasterExit {
  code: number | null;
  signal: NodeJS.Signals | null;
  /** Its last lines on standard error. */
  log: string;
}

export type StopMode = 'fast' | 'immediate';

export interface Postmaster {
  readonly pid: number;
  readonly socketDirectory: string;
  readonly exited: Promise<PostmasterExit>;
  /** Ends it: `fast` writes a checkpoint, `immediate` leaves recovery to the next start. */
  stop(mode: StopMode): Promise<PostmasterExit>;
}

export interface PostmasterOptions {
  binaries: Binaries;
  data: string;
  socketDirectory: string;
  owner: Owner | undefined;
  settings: Settings;
  /** Most that each of its processes may take, in MiB, beside shared memory; Linux only. */
  sessionMemoryMb?: number;
  /** How long it may take to get ready; recovery of much WAL takes its time. */
  readyTimeoutMs?: number;
  signal?: AbortSignal;
}

export class PostmasterFailed extends Error {
  readonly exit: PostmasterExit;

  constructor(exit: PostmasterExit, message = 'Postgres did not start') {
    super(`${message} (${exit.signal ?? `exit code ${exit.code}`}): ${exit.log}`);
    this.name = 'PostmasterFailed';
    this.exit = exit;
  }
}

export const socketPort = 5432;
const logLines = 40;
const fastStopMs = 6_000;
const immediateStopMs = 2_000;

/** Its data directory, as a postmaster itself is to name it. */
export const ownWorkingDirectory = (data: string) =>
  process.platform === 'linux' ? '/proc/self/cwd' : data;

/** Starts a server and returns when it accepts connections; fails when it exits before. */
export async function startPostmaster(options: PostmasterOptions): Promise<Postmaster> {
  const { binaries, data, socketDirectory, owner } = options;
  options.signal?.throwIfAborted();
  await prepareSocketDirectory(socketDirectory, owner);
  const [program, args] = commandOf(join(binaries.bin, 'postgres'), options);
  const child = spawn(program, args, {
    cwd: data,
    // Its own session: Ctrl-C in a terminal is for the service, which then stops its servers.
    detached: true,
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { LC_ALL: 'C', PATH: '/usr/local/bin:/usr/bin:/bin' },
    ...(owner ?? {}),
  });
  const exited = watch(child);
  if (child.pid === undefined) throw new PostmasterFailed(await exited);

  const postmaster: Postmaster = {
    pid: child.pid,
    socketDirectory,
    exited,
    stop: (mode) => stop(child, exited, mode),
  };
  try {
    await ready(postmaster, options);
  } catch (error) {
    await stop(child, exited, 'immediate');
    throw error;
  }
  return postmaster;
}

/**
 * A session can ask for any `work_mem`: with a limit, a query that wants more than there is fails
 * with "out of memory", and when the machine itself runs out, these processes go before the service.
 */
function commandOf(postgres: string, options: PostmasterOptions): [string, string[]] {
  const { sessionMemoryMb } = options;
  const args = argumentsOf(options);
  if (sessionMemoryMb === undefined || process.platform !== 'linux') return [postgres, args];
  const script = 'ulimit -d "$0"; echo 500 > /proc/self/oom_score_adj; exec "$@" 2>&3';
  return [
    '/bin/sh',
    ['-c', `exec 3>&2 2>/dev/null; ${script}`, String(sessionMemoryMb * 1024), postgres, ...args],
  ];
}

function argumentsOf({ data, socketDirectory, settings }: PostmasterOptions): string[] {
  const all: Settings = {
    ...settings,
    listen_addresses: '',
    unix_socket_directories: socketDirectory,
    unix_socket_permissions: '0700',
    port: String(socketPort),
  };
  return [
    '-D',
    ownWorkingDirectory(data),
    ...Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
  ];
}

/** Only the server's user and the service can enter it; what a dead server left there goes. */
async function prepareSocketDirectory(path: string, owner: Owner | undefined): Promise<void> {
  await rm(path, { recursive: true, force: true });
  await mkdir(path);
  await chmod(path, 0o700);
  if (owner) await chown(path, owner.uid, owner.gid);
}

function watch(child: ChildProcess): Promise<PostmasterExit> {
  const lines: string[] = [];
  let partial = '';
  child.stderr?.setEncoding('utf8');
  child.stderr?.on('data', (text: string) => {
    const parts = (partial + text).split('\n');
    partial = parts.pop()!.slice(-4096);
    lines.push(...parts);
    lines.splice(0, lines.length - logLines);
  });
  const log = () => [...lines, partial].join('\n').trim();
  return new Promise((resolve) => {
    child.once('error', (error) => resolve({ code: null, signal: null, log: error.message }));
    // Backends of a killed server keep its standard error open for a moment: do not wait for them.
    child.once('exit', (code, signal) => setImmediate(() => resolve({ code, signal, log: log() })));
  });
}

/** The last line of postmaster.pid is how pg_ctl, too, knows that a server is ready. */
async function ready(postmaster: Postmaster, options: PostmasterOptions): Promise<void> {
  const deadline = Date.now() + (options.readyTimeoutMs ?? 60_000);
  let exit: PostmasterExit | undefined;
  void postmaster.exited.then((value) => {
    exit = value;
  });
  const statusFile = join(options.data, 'postmaster.pid');
  for (let waitMs = 1; ; waitMs = Math.min(waitMs * 1.05, 25)) {
    if (exit) throw new PostmasterFailed(exit);
    const lines = readIfThere(statusFile).split('\n');
    if (Number(lines[0]) === postmaster.pid && lines[7]?.startsWith('ready')) return;
    if (Date.now() > deadline)
      throw new PostmasterFailed(
        { code: null, signal: null, log: '' },
        'Postgres did not get ready in time',
      );
    await delay(waitMs, undefined, { signal: options.signal });
  }
}

function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}

async function stop(
  child: ChildProcess,
  exited: Promise<PostmasterExit>,
  mode: StopMode,
): Promise<PostmasterExit> {
  if (mode === 'fast') {
    child.kill('SIGINT');
    const exit = await within(exited, fastStopMs);
    if (exit) return exit;
  }
  child.kill('SIGQUIT');
  const exit = await within(exited, immediateStopMs);
  if (exit) return exit;
  child.kill('SIGKILL');
  return exited;
}

async function within<T>(promise: Promise<T>, timeoutMs: number): Promise<T | undefined> {
  const cancel = new AbortController();
  try {
    return await Promise.race([
      promise,
      delay(timeoutMs, undefined, { signal: cancel.signal }).catch(() => undefined),
    ]);
  } finally {
    cancel.abort();
  }
}
