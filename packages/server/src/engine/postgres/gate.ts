/** Lets at most `limit` at a time through; the others wait in the order they came. */
export interface Gate {
  pass<T>(work: () => Promise<T>): Promise<T>;
}

export function createGate(limit: number): Gate {
  const waiting: (() => void)[] = [];
  let inside = 0;

  return {
    async pass(work) {
      if (inside >= limit) await new Promise<void>((resolve) => waiting.push(resolve));
      else inside++;
      try {
        return await work();
      } finally {
        // The place goes straight to the next in line, or is given up.
        const next = waiting.shift();
        if (next) next();
        else inside--;
      }
    },
  };
}
