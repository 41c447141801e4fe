// Finding bubblewrap, or getting it: of the system, from an earlier download, by apt as root, or by apt
// into the data directory as an ordinary user. Every attempt is bounded in time.
//
// On disk: <directory>/bubblewrap/usr/bin/bwrap when it was downloaded.
import { execFile } from 'node:child_process';
import { constants } from 'node:fs';
import { access, mkdir, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const installTimeoutMs = 60_000;
const downloadTimeoutMs = 60_000;

export interface BubblewrapOptions {
  /** Where a downloaded copy is kept. */
  directory: string;
  isRoot: boolean;
  /** Told once before something is installed or downloaded. */
  onInstall(message: string): void;
  signal: AbortSignal;
}

/** Path of a bwrap, or undefined when there is none and none can be had. */
export async function findBubblewrap(options: BubblewrapOptions): Promise<string | undefined> {
  const present = await findPresent(options);
  if (present || process.platform !== 'linux') return present;
  const apt = await findInSystem('apt-get');
  if (!apt) return undefined;
  try {
    if (options.isRoot) {
      options.onInstall('installing bubblewrap (apt-get install bubblewrap)');
      await install(apt, options.signal);
    } else {
      options.onInstall('downloading bubblewrap for the sandbox of functions');
      await download(apt, options);
    }
  } catch {
    // No network, no permission, another distribution: the caller says what that means.
  }
  return findPresent(options);
}

async function findPresent(options: BubblewrapOptions): Promise<string | undefined> {
  const downloaded = join(options.directory, 'bubblewrap/usr/bin/bwrap');
  return (
    (await findInSystem('bwrap')) ?? ((await isExecutable(downloaded)) ? downloaded : undefined)
  );
}

async function install(apt: string, signal: AbortSignal): Promise<void> {
  const options = {
    signal,
    timeout: installTimeoutMs,
    env: { PATH: systemPath, DEBIAN_FRONTEND: 'noninteractive' },
  };
  const args = ['-y', '-q', '-o', 'DPkg::Lock::Timeout=20', 'install', 'bubblewrap'];
  try {
    await run(apt, args, options);
  } catch {
    await run(apt, ['-q', 'update'], options);
    await run(apt, args, options);
  }
}

/** As an ordinary user: lists and archives of our own, and nothing is installed. */
async function download(apt: string, options: BubblewrapOptions): Promise<void> {
  const target = join(options.directory, 'bubblewrap');
  const lists = join(options.directory, 'apt');
  await rm(target, { recursive: true, force: true });
  await mkdir(join(lists, 'state/lists/partial'), { recursive: true });
  await mkdir(join(lists, 'cache/archives/partial'), { recursive: true });
  await mkdir(target, { recursive: true });
  const own = [
    ['-o', `Dir::State=${join(lists, 'state')}`],
    ['-o', `Dir::Cache=${join(lists, 'cache')}`],
    ['-o', 'Dir::State::status=/var/lib/dpkg/status'],
  ].flat();
  const settings = {
    cwd: target,
    signal: options.signal,
    timeout: downloadTimeoutMs,
    env: { PATH: systemPath },
  };
  try {
    await run(apt, [...own, '-q', 'update'], settings);
    await run(apt, [...own, '-q', 'download', 'bubblewrap'], settings);
    const archive = (await readdir(target)).find((name) => name.endsWith('.deb'));
    if (archive) await run('dpkg-deb', ['-x', archive, target], settings);
  } finally {
    await rm(lists, { recursive: true, force: true });
  }
}

const systemPath = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

async function findInSystem(name: string): Promise<string | undefined> {
  for (const directory of systemPath.split(':'))
    if (await isExecutable(join(directory, name))) return join(directory, name);
  return undefined;
}

const isExecutable = (file: string) =>
  access(file, constants.X_OK).then(
    () => true,
    () => false,
  );
