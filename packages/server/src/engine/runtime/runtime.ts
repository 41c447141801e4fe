// Runs customers' functions. The service is on one side of a process boundary, each function
// version on the other; see launcher.ts for what the jail holds, sandbox.ts for one process,
// pool.ts for who gets which, egress.ts for the way out.
//
// Invariants: no process ever runs the code of two versions; a frame from a sandbox is the tenant's
// word and nothing more; whatever a run holds is given back when it ends.
//
// On disk:
//   <directory>/deno-<version>       the binary, where the installed one cannot be reached
//   <directory>/bubblewrap/          bwrap, where it had to be downloaded
//   <temporary directory>/coppice-functions-<pid>-*/   loader.js, the seccomp filter, one directory a sandbox
import { chmodSync, mkdirSync, mkdtempSync } from 'node:fs';
import { readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import type { Logger } from '../../kernel/logger.ts';
import { findBubblewrap } from './bubblewrap.ts';
import { findCgroups, isAlive } from './cgroup.ts';
import { findDeno, isReachable, librariesOf, placeIn } from './deno-binary.ts';
import { closedEgress, createEgress } from './egress.ts';
import { createLauncher, type Jail, type Launcher } from './launcher.ts';
import { createPool, type Job, type Pool, type PoolCounts } from './pool.ts';
import { createSandbox, type Outcome, type Sandbox } from './sandbox.ts';
import { seccompFilter } from './seccomp.ts';

export interface RuntimeOptions {
  /** Kept between starts. */
  directory: string;
  /** Path of bwrap; undefined: found, installed or downloaded. */
  bubblewrap: string | undefined;
  /** Run functions with Deno's flags only where there is no bubblewrap. */
  allowUnisolated: boolean;
  /** `address` or `address:port` that functions may reach although they are not public. */
  privateAllowed: readonly string[];
  spares: number;
  maxSandboxes: number;
  maxPerFunction: number;
  maxWaitMs: number;
  idleMs: number;
  logger: Logger;
  /** See `LauncherOptions`. */
  jailedPermissions?: readonly string[];
}

export interface Runtime {
  /** Begins to get ready; returns at once. Runs wait for it. */
  start(): void;
  /** Resolves when the spares have booted; says how functions will run. */
  ready(): Promise<RuntimeMode>;
  run(job: Job): Promise<Outcome>;
  counts(): PoolCounts;
  close(): Promise<void>;
}

export type RuntimeMode = 'isolated' | 'unisolated' | 'off';

export const defaultMemoryMb = 128;
const workPrefix = 'coppice-functions-';
/** Who bubblewrap runs as when the service is root. No user of a distribution has this number. */
const sandboxUid = 29_990;

interface Prepared {
  mode: RuntimeMode;
  pool: Pool | undefined;
  /** For `off`: why. */
  reason?: string;
}

export function createRuntime(options: RuntimeOptions): Runtime {
  const { logger } = options;
  const closing = new AbortController();
  const isRoot = process.getuid?.() === 0;
  let prepared: Promise<Prepared> | undefined;
  let pool: Pool | undefined;
  let workDirectory: string | undefined;
  let lastSandbox = 0;

  async function prepare(): Promise<Prepared> {
    const deno = findDeno();
    if (!deno) return off(`there is no Deno for ${process.platform} on ${process.arch}`);
    await sweepWorkDirectories();
    workDirectory = mkdtempSync(join(tmpdir(), `${workPrefix}${process.pid}-`));
    chmodSync(workDirectory, 0o711);
    const loader = join(workDirectory, 'loader.js');
    const [bwrap] = await Promise.all([
      options.bubblewrap ??
        findBubblewrap({
          directory: options.directory,
          isRoot,
          onInstall: (message) => logger.info(message),
          signal: closing.signal,
        }),
      buildLoader(loader),
    ]);
    if (bwrap) {
      const started = await tryJail(bwrap, deno, loader);
      if (started) return { mode: 'isolated', pool: started };
    }
    const advice = 'install bubblewrap (apt-get install bubblewrap) and allow user namespaces';
    if (!options.allowUnisolated)
      return off(`functions need a sandbox when the service listens beyond loopback: ${advice}`);
    logger.warn(`functions run without a sandbox, with Deno's permissions only: ${advice}`);
    const launcher = createLauncher({ deno: deno.path, loader, jail: undefined });
    return { mode: 'unisolated', pool: newPool(launcher, undefined) };
  }

  function off(reason: string): Prepared {
    logger.warn(`functions are off: ${reason}`);
    return { mode: 'off', pool: undefined, reason };
  }

  async function tryJail(
    bwrap: string,
    deno: { path: string; version: string },
    loader: string,
  ): Promise<Pool | undefined> {
    try {
      const jail: Jail = {
        bwrap,
        libraries: await librariesOf(deno.path),
        seccompFile: await writeFilter(),
        cgroups: findCgroups(),
        user: isRoot ? { uid: sandboxUid, gid: sandboxUid } : undefined,
      };
      const launcher = createLauncher({
        deno: await reachableDeno(deno),
        loader,
        jail,
        jailedPermissions: options.jailedPermissions,
      });
      const candidate = newPool(launcher, jail.user);
      await candidate.fill();
      logger.debug({ cgroups: jail.cgroups?.version ?? null }, 'function sandboxes are ready');
      return candidate;
    } catch (error) {
      logger.warn({ err: error }, 'bubblewrap does not work here');
      return undefined;
    }
  }

  function newPool(launcher: Launcher, owner: Jail['user']): Pool {
    pool = createPool({
      ...options,
      launch: (memoryMb, allowlist, onEnd) => launch(launcher, owner, memoryMb, allowlist, onEnd),
      generic: launcher.isolated,
      defaultMemoryMb,
    });
    return pool;
  }

  function launch(
    launcher: Launcher,
    owner: Jail['user'],
    memoryMb: number,
    allowlist: readonly string[],
    onEnd: () => void,
  ): Sandbox {
    const runDirectory = join(workDirectory!, String(++lastSandbox));
    mkdirSync(runDirectory, { mode: 0o755 });
    const egress = launcher.isolated
      ? createEgress({ directory: runDirectory, owner, privateAllowed: options.privateAllowed })
      : closedEgress;
    const launched = launcher.launch({ memoryMb, runDirectory, allowlist });
    return createSandbox({ launched, egress, runDirectory, memoryMb, onEnd });
  }

  async function reachableDeno({ path, version }: { path: string; version: string }) {
    if (!isRoot || (await isReachable(path))) return path;
    for (const directory of [options.directory, '/var/lib/coppice']) {
      const placed = await placeIn(directory, path, version).catch(() => undefined);
      if (placed && (await isReachable(placed))) return placed;
    }
    return placeIn(workDirectory!, path, version);
  }

  async function writeFilter(): Promise<string | undefined> {
    const filter = seccompFilter();
    if (!filter) return undefined;
    const file = join(workDirectory!, 'seccomp.bpf');
    await writeFile(file, filter);
    return file;
  }

  const prepareOnce = () =>
    (prepared ??= prepare().catch((error: unknown) => {
      logger.error({ err: error }, 'functions could not be made ready');
      return { mode: 'off' as const, pool: undefined, reason: 'the runtime did not start' };
    }));

  return {
    start: () => void prepareOnce(),
    ready: async () => (await prepareOnce()).mode,
    async run(job) {
      const { pool: active, reason } = await prepareOnce();
      if (active) return active.run(job);
      return {
        status: 'failed',
        error: { name: 'RuntimeUnavailableError', message: `functions are off: ${reason}` },
      };
    },
    counts: () => pool?.counts() ?? { total: 0, spare: 0, idle: 0, running: 0, waiting: 0 },
    async close() {
      closing.abort();
      await prepared;
      await pool?.close();
      if (workDirectory) await rm(workDirectory, { recursive: true, force: true });
    },
  };
}

/** Removes what services left that were killed. */
async function sweepWorkDirectories(): Promise<void> {
  for (const name of await readdir(tmpdir())) {
    const pid = new RegExp(`^${workPrefix}(\\d+)-`).exec(name)?.[1];
    if (pid === undefined || isAlive(Number(pid))) continue;
    await rm(join(tmpdir(), name), { recursive: true, force: true }).catch(() => {});
  }
}

async function buildLoader(file: string): Promise<void> {
  await build({
    entryPoints: [fileURLToPath(new URL('./inside/loader.ts', import.meta.url))],
    outfile: file,
    bundle: true,
    format: 'esm',
    target: 'esnext',
    external: ['node:*'],
    logLevel: 'silent',
  });
}
