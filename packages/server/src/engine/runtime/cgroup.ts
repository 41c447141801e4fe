// Memory and process limits of a sandbox by the kernel's control groups: version 2, else version 1,
// below the group the service itself is in. Without permission to make groups there are none, and
// the launcher falls back to resource limits.
//
// On disk (the kernel's): <controller>/<own group>/coppice-<service pid>-<n>
import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export interface Cgroup {
  add(pid: number): void;
  limitMemory(bytes: number): void;
  /** Whether the kernel has killed in it for lack of memory. */
  ranOutOfMemory(): boolean;
  /** Removes it; its processes must have ended. */
  remove(): void;
}

export interface Cgroups {
  readonly version: 1 | 2;
  create(): Cgroup;
}

const maxProcesses = 128;

interface Files {
  version: 1 | 2;
  /** Directories below which a group is made: one (v2) or one a controller (v1). */
  parents: { memory: string; pids: string };
  memoryLimit: string[];
  outOfMemory: string;
}

export function findCgroups(): Cgroups | undefined {
  for (const files of [version2(), version1()]) {
    if (!files) continue;
    sweep(files);
    const cgroups = { version: files.version, create: () => createCgroup(files) };
    try {
      const probe = cgroups.create();
      probe.limitMemory(256 * 1024 * 1024);
      probe.remove();
      return cgroups;
    } catch {
      // Not permitted here; the next kind may be.
    }
  }
  return undefined;
}

let lastNumber = 0;

function createCgroup(files: Files): Cgroup {
  const name = `coppice-${process.pid}-${++lastNumber}`;
  const memory = join(files.parents.memory, name);
  const pids = join(files.parents.pids, name);
  const directories = [...new Set([memory, pids])];
  for (const directory of directories) mkdirSync(directory, { recursive: true });
  try {
    writeFileSync(join(pids, 'pids.max'), String(maxProcesses));
  } catch (error) {
    for (const directory of directories) rmdirSync(directory);
    throw error;
  }
  return {
    add(pid) {
      for (const directory of directories)
        writeFileSync(join(directory, 'cgroup.procs'), String(pid));
    },
    limitMemory(bytes) {
      files.memoryLimit.forEach((file, index) => {
        try {
          writeFileSync(join(memory, file), String(file === 'memory.swap.max' ? 0 : bytes));
        } catch (error) {
          // Only the first file is the limit; swap accounting may be off.
          if (index === 0) throw error;
        }
      });
    },
    ranOutOfMemory() {
      try {
        const events = readFileSync(join(memory, files.outOfMemory), 'utf8');
        return Number(/^oom_kill (\d+)$/m.exec(events)?.[1] ?? 0) > 0;
      } catch {
        return false;
      }
    },
    remove() {
      for (const directory of directories) removeGroup(directory);
    },
  };
}

function removeGroup(directory: string): void {
  try {
    rmdirSync(directory);
  } catch {
    // A process of it is still ending; the sweep of the next start removes it.
  }
}

function version2(): Files | undefined {
  try {
    const own = /^0::(.*)$/m.exec(readFileSync('/proc/self/cgroup', 'utf8'))?.[1];
    const mount = / - cgroup2 /.exec(readFileSync('/proc/self/mountinfo', 'utf8'));
    if (own === undefined || !mount) return undefined;
    const parent = join('/sys/fs/cgroup', own);
    const offered = readFileSync(join(parent, 'cgroup.controllers'), 'utf8').split(/\s+/);
    if (!offered.includes('memory') || !offered.includes('pids')) return undefined;
    writeFileSync(join(parent, 'cgroup.subtree_control'), '+memory +pids');
    return {
      version: 2,
      parents: { memory: parent, pids: parent },
      memoryLimit: ['memory.max', 'memory.swap.max'],
      outOfMemory: 'memory.events',
    };
  } catch {
    return undefined;
  }
}

function version1(): Files | undefined {
  try {
    const groups = readFileSync('/proc/self/cgroup', 'utf8');
    const own = (controller: string) =>
      new RegExp(`^\\d+:(?:[^:]*,)?${controller}(?:,[^:]*)?:(.*)$`, 'm').exec(groups)?.[1];
    const [memory, pids] = [own('memory'), own('pids')];
    if (memory === undefined || pids === undefined) return undefined;
    return {
      version: 1,
      parents: {
        memory: join('/sys/fs/cgroup/memory', memory),
        pids: join('/sys/fs/cgroup/pids', pids),
      },
      memoryLimit: ['memory.limit_in_bytes', 'memory.memsw.limit_in_bytes'],
      outOfMemory: 'memory.oom_control',
    };
  } catch {
    return undefined;
  }
}

/** Groups of services that have ended. */
function sweep(files: Files): void {
  for (const parent of new Set(Object.values(files.parents)))
    try {
      for (const name of readdirSync(parent)) {
        const pid = /^coppice-(\d+)-\d+$/.exec(name)?.[1];
        if (pid && !isAlive(Number(pid))) removeGroup(join(parent, name));
      }
    } catch {
      // Not ours to clean.
    }
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
