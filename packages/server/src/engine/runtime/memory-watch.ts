// The memory limit of a sandbox where the service may not make control groups: its process is looked
// at while an invocation runs, and once more when the result is there. The kernel keeps the highest
// mark, so what was allocated and freed between two looks counts as well.
import { readFileSync } from 'node:fs';

export interface MemoryWatch {
  start(pid: number, onExceeded: () => void): void;
  stop(): void;
  /** Whether the process has ever held more than its limit. */
  exceeded(): boolean;
}

const intervalMs = 20;

export function createMemoryWatch(limitBytes: number): MemoryWatch {
  let timer: NodeJS.Timeout | undefined;
  let watched: number | undefined;
  let isExceeded = false;
  const look = () => {
    if (watched !== undefined && peakBytes(watched) > limitBytes) isExceeded = true;
    return isExceeded;
  };
  return {
    start(pid, onExceeded) {
      watched = pid;
      timer ??= setInterval(() => {
        if (look()) onExceeded();
      }, intervalMs);
    },
    stop() {
      clearInterval(timer);
      timer = undefined;
    },
    exceeded: look,
  };
}

/** The most memory of its own that a process has held; 0 once it has ended. */
function peakBytes(pid: number): number {
  try {
    const status = readFileSync(`/proc/${pid}/status`, 'utf8');
    const field = (name: string) =>
      Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(status)?.[1] ?? 0) * 1024;
    // Pages of the program itself are shared with every other sandbox.
    return field('VmHWM') - field('RssFile');
  } catch {
    return 0;
  }
}
