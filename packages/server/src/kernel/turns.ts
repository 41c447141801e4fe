/** One at a time for each key, in the order they came. */
export interface Turns {
  take<T>(key: string, work: () => Promise<T>): Promise<T>;
}

export function createTurns(): Turns {
  const last = new Map<string, Promise<unknown>>();
  return {
    async take(key, work) {
      const before = last.get(key);
      const mine = (async () => {
        await before;
        return work();
      })();
      const settled = mine.then(
        () => {},
        () => {},
      );
      last.set(key, settled);
      try {
        return await mine;
      } finally {
        if (last.get(key) === settled) last.delete(key);
      }
    },
  };
}
