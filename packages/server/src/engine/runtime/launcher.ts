// Starts sandbox processes: Deno inside bubblewrap, or, where there is no bubblewrap, Deno with its
// own permission flags only.
//
// A jailed process sees: the Deno binary, its libraries and the loader (read-only), /proc of its own
// process namespace, a minimal /dev, a small tmpfs, /run with the socket of its egress proxy, an
// empty network and no environment. It runs as an unprivileged user without any capability, under a
// system-call filter and a memory limit.
import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import type { Readable, Writable } from 'node:stream';
import type { Cgroup, Cgroups } from './cgroup.ts';
import { createMemoryWatch, type MemoryWatch } from './memory-watch.ts';

export interface Jail {
  bwrap: string;
  /** Files of the host that Deno needs to run, by their own paths. */
  libraries: readonly string[];
  /** A compiled filter on disk, where this machine has one. */
  seccompFile: string | undefined;
  cgroups: Cgroups | undefined;
  /** Who bubblewrap runs as when the service is root. */
  user: { uid: number; gid: number } | undefined;
}

export interface LauncherOptions {
  deno: string;
  loader: string;
  /** Absent: no isolation beyond Deno's flags. */
  jail: Jail | undefined;
  /** What Deno itself grants inside a jail; tests grant everything to see that the jail holds. */
  jailedPermissions?: readonly string[] | undefined;
}

export interface LaunchRequest {
  memoryMb: number;
  /** Directory that appears as /run. */
  runDirectory: string;
  /** Only without a jail, where Deno itself must know: hosts it may connect to. */
  allowlist: readonly string[];
}

export interface Launched {
  child: ChildProcess;
  stdin: Writable;
  stdout: Readable;
  /** The Deno process, as the host numbers it. */
  pid: Promise<number>;
  cgroup: Cgroup | undefined;
  /** In place of a control group. */
  memoryWatch: MemoryWatch | undefined;
}

export interface Launcher {
  readonly isolated: boolean;
  launch(request: LaunchRequest): Launched;
}

/** What Deno itself takes, on top of what a function may use. */
const runtimeShareMb = 64;
/**
 * Without control groups the memory in use is watched; what is allocated faster than that meets a
 * limit on writable address space, most of which is never touched.
 */
const addressSpaceShareMb = 640;

const denoFlags = [
  'run',
  '--quiet',
  '--no-prompt',
  '--no-remote',
  '--no-npm',
  '--cached-only',
  '--no-config',
  '--no-lock',
  '--no-code-cache',
];

/** The network is empty but for the way to the egress proxy. */
const jailedPermissions = [
  '--allow-net',
  '--allow-read=/run/egress.sock',
  '--allow-write=/run/egress.sock',
];

export function createLauncher(options: LauncherOptions): Launcher {
  const { jail } = options;
  return {
    isolated: jail !== undefined,
    launch: (request) =>
      jail ? launchJailed(options, jail, request) : launchBare(options, request),
  };
}

function launchJailed(options: LauncherOptions, jail: Jail, request: LaunchRequest): Launched {
  const readOnly = (source: string, target = source) => ['--ro-bind', source, target];
  const seccomp = jail.seccompFile === undefined ? undefined : openSync(jail.seccompFile, 'r');
  const args = [
    ...['--unshare-all', '--die-with-parent', '--new-session', '--as-pid-1', '--clearenv'],
    ...['--cap-drop', 'ALL'],
    // The process is put into its control group before it may go on.
    ...['--info-fd', '3', '--block-fd', '4'],
    ...(seccomp === undefined ? [] : ['--seccomp', '5']),
    ...jail.libraries.flatMap((file) => readOnly(file)),
    ...readOnly(options.deno, '/deno'),
    ...readOnly(options.loader, '/loader.js'),
    ...readOnly(request.runDirectory, '/run'),
    ...['--proc', '/proc', '--dev', '/dev', '--size', String(16 * 1024 * 1024), '--tmpfs', '/tmp'],
    ...['--remount-ro', '/', '--chdir', '/tmp'],
    ...['--setenv', 'HOME', '/tmp', '--setenv', 'DENO_DIR', '/tmp/deno'],
    ...['--setenv', 'DENO_NO_UPDATE_CHECK', '1', '--setenv', 'NO_COLOR', '1'],
    ...['HTTP_PROXY', 'HTTPS_PROXY'].flatMap((name) => ['--setenv', name, 'http://127.0.0.1:3128']),
    '--',
    '/deno',
    ...denoFlags,
    heapLimit(request.memoryMb),
    ...(options.jailedPermissions ?? jailedPermissions),
    '/loader.js',
  ];
  const limited = jail.cgroups ? [jail.bwrap, ...args] : limitAddressSpace(request, jail, args);
  const child = spawn(limited[0]!, limited.slice(1), {
    ...jail.user,
    cwd: '/',
    env: {},
    stdio: ['pipe', 'pipe', 'ignore', 'pipe', 'pipe', seccomp ?? 'ignore'],
  });
  if (seccomp !== undefined) closeSync(seccomp);

  const cgroup = jail.cgroups?.create();
  cgroup?.limitMemory(memoryLimit(request));
  const pid = readChildPid(child.stdio[3] as Readable).then((number) => {
    cgroup?.add(number);
    const gate = child.stdio[4] as Writable;
    gate.on('error', () => {});
    gate.end('.');
    return number;
  });
  const memoryWatch = cgroup ? undefined : createMemoryWatch(memoryLimit(request));
  return { child, stdin: child.stdin!, stdout: child.stdout!, pid, cgroup, memoryWatch };
}

const memoryLimit = ({ memoryMb }: LaunchRequest) => (memoryMb + runtimeShareMb) * 1024 * 1024;

function limitAddressSpace(request: LaunchRequest, jail: Jail, args: string[]): string[] {
  const kibibytes = (request.memoryMb + addressSpaceShareMb) * 1024;
  return ['/bin/sh', '-c', `ulimit -d ${kibibytes}; exec "$@"`, 'sh', jail.bwrap, ...args];
}

function launchBare(options: LauncherOptions, request: LaunchRequest): Launched {
  const child = spawn(
    options.deno,
    [
      ...denoFlags,
      heapLimit(request.memoryMb),
      ...(request.allowlist.length > 0 ? [`--allow-net=${request.allowlist.join(',')}`] : []),
      options.loader,
    ],
    {
      cwd: request.runDirectory,
      env: { DENO_NO_UPDATE_CHECK: '1', NO_COLOR: '1', DENO_DIR: `${request.runDirectory}/deno` },
      stdio: ['pipe', 'pipe', 'ignore'],
    },
  );
  return {
    child,
    stdin: child.stdin!,
    stdout: child.stdout!,
    pid:
      child.pid === undefined
        ? Promise.reject(new Error('no process'))
        : Promise.resolve(child.pid),
    cgroup: undefined,
    memoryWatch: createMemoryWatch(memoryLimit(request)),
  };
}

const heapLimit = (memoryMb: number) => `--v8-flags=--max-old-space-size=${memoryMb}`;

/** bubblewrap says {"child-pid": n, …} on its info descriptor. */
function readChildPid(info: Readable): Promise<number> {
  return new Promise((resolve, reject) => {
    let text = '';
    info.on('data', (chunk: Buffer) => {
      text += chunk.toString();
      const pid = /"child-pid": (\d+)\b[^\d]/.exec(text)?.[1];
      if (pid) resolve(Number(pid));
    });
    info.on('error', reject);
    info.on('close', () => reject(new Error('bubblewrap did not start the sandbox')));
  });
}
