import type { Logger } from './logger.ts';

export interface Releasers {
  /** Registers how to give back what was just acquired. */
  push(name: string, release: () => unknown): void;
  /** Runs all of them, the newest first; one that fails or hangs does not stop the others. */
  release(): Promise<void>;
}

export function createReleasers(logger: Logger, timeoutMs = 10_000): Releasers {
  const stack: { name: string; release: () => unknown }[] = [];
  let released: Promise<void> | undefined;

  async function releaseAll(): Promise<void> {
    for (let entry = stack.pop(); entry; entry = stack.pop()) {
      const { name, release } = entry;
      let timer: NodeJS.Timeout | undefined;
      const deadline = new Promise<never>((_, reject) => {
        timer = setTimeout(() => reject(new Error(`not done after ${timeoutMs} ms`)), timeoutMs);
      });
      try {
        await Promise.race([Promise.resolve().then(release), deadline]);
      } catch (error) {
        logger.error({ err: error, releaser: name }, 'could not release');
      } finally {
        clearTimeout(timer);
      }
    }
  }

  return {
    push: (name, release) => void stack.push({ name, release }),
    release: () => (released ??= releaseAll()),
  };
}
