import { FileError } from '../../kernel/files.ts';

/** Lets a limited number of callers through at once, in the order they came. */
export interface Gate {
  run<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T>;
  readonly idle: boolean;
}

export function createGate(limit: number, patienceMs: number): Gate {
  let inside = 0;
  const waiting: (() => void)[] = [];

  function enter(signal?: AbortSignal): Promise<void> {
    if (inside < limit) {
      inside += 1;
      return Promise.resolve();
    }
    return new Promise((resolve, reject) => {
      const giveUp = (error: Error) => {
        waiting.splice(waiting.indexOf(admit), 1);
        stopWaiting();
        reject(error);
      };
      const onAbort = () => giveUp(new FileError('EIO', 'given up'));
      const timer = setTimeout(
        () => giveUp(new FileError('EIO', 'the files are busy; try again')),
        patienceMs,
      );
      const stopWaiting = () => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', onAbort);
      };
      const admit = () => {
        stopWaiting();
        resolve();
      };
      signal?.addEventListener('abort', onAbort);
      waiting.push(admit);
    });
  }

  function leave(): void {
    const next = waiting.shift();
    if (next) next();
    else inside -= 1;
  }

  return {
    async run(work, signal) {
      signal?.throwIfAborted();
      await enter(signal);
      try {
        return await work();
      } finally {
        leave();
      }
    },
    get idle() {
      return inside === 0;
    },
  };
}
