// Starts the real service the way a user does, as a process of its own, on free ports and a
// temporary data directory.
import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Api, createApi } from './api.ts';

const root = resolve(fileURLToPath(import.meta.url), '../../..');
const nodeFlags: string[] = JSON.parse(
  readFileSync(join(root, 'packages/server/node-flags.json'), 'utf8'),
);

export interface RunningService {
  /** Without a slash at the end. */
  baseUrl: string;
  gateway: { host: string; port: number };
  dataDir: string;
  pid: number;
  api: Api;
  /** What it wrote to standard error so far. */
  log(): string;
  /** As Ctrl-C does; resolves when the process is gone. */
  stop(): Promise<void>;
  /** As the power cut does: no clean end, data directory kept. */
  kill(): Promise<void>;
  /** Starts again on the same data directory after `kill()`. */
  restart(): Promise<RunningService>;
}

export interface ServiceOptions {
  /** Flags such as `--idle-seconds`, `2`. */
  flags?: readonly string[];
  env?: Record<string, string>;
  /** Kept at the end; without one there is a temporary one, gone after `stop()`. */
  dataDir?: string;
}

/** Made once for all tests: the blank cluster and the like, which every fresh start needs. */
const cacheDir = join(root, 'node_modules/.cache/coppice');

export async function startService(options: ServiceOptions = {}): Promise<RunningService> {
  const dataDir = options.dataDir ?? (await mkdtemp(join(tmpdir(), 'coppice-test-')));
  try {
    return await startIn(dataDir, options);
  } catch (error) {
    if (options.dataDir === undefined) await rm(dataDir, { recursive: true, force: true });
    throw error;
  }
}

async function startIn(dataDir: string, options: ServiceOptions): Promise<RunningService> {
  const child = spawn(
    process.execPath,
    [
      ...nodeFlags,
      join(root, 'packages/server/src/main.ts'),
      ...['--port', '0', '--gateway-port', '0', '--data-dir', dataDir, '--cache-dir', cacheDir],
      // Few databases prepared in advance: most tests make one or two.
      ...['--pool-size', '2', '--function-spares', '0'],
      ...(options.flags ?? []),
    ],
    {
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
      env: { ...process.env, NODE_OPTIONS: '', ...options.env },
    },
  );
  let log = '';
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    log = (log + text).slice(-200_000);
  });
  const { publicUrl, gateway } = await ready(child, () => log);

  const ended = new Promise<void>((done) => child.once('exit', () => done()));
  return {
    baseUrl: publicUrl,
    gateway,
    dataDir,
    pid: child.pid!,
    api: createApi(publicUrl),
    log: () => log,
    async stop() {
      child.kill('SIGTERM');
      await ended;
      if (options.dataDir === undefined) await rm(dataDir, { recursive: true, force: true });
    },
    async kill() {
      child.kill('SIGKILL');
      await ended;
    },
    restart: () => startIn(dataDir, options),
  };
}

function ready(
  child: ChildProcess,
  log: () => string,
): Promise<{ publicUrl: string; gateway: { host: string; port: number } }> {
  return new Promise((done, fail) => {
    const timer = setTimeout(() => fail(new Error(`service not ready in time:\n${log()}`)), 60_000);
    child.once('message', (message) => {
      clearTimeout(timer);
      done(message as { publicUrl: string; gateway: { host: string; port: number } });
    });
    child.once('exit', (code) => {
      clearTimeout(timer);
      fail(new Error(`service ended with ${code}:\n${log()}`));
    });
  });
}
