// One gate a database: many may read its history at once, one may change it while nobody reads.
// Whoever asks first goes first, so that neither side waits for ever.

export interface Gates {
  shared<T>(id: string, work: () => Promise<T>): Promise<T>;
  exclusive<T>(id: string, work: () => Promise<T>): Promise<T>;
}

interface Gate {
  /** The last to change, and everyone who reads since then. */
  writer: Promise<unknown>;
  readers: Set<Promise<unknown>>;
  users: number;
}

export function createGates(): Gates {
  const gates = new Map<string, Gate>();

  async function within<T>(id: string, work: (gate: Gate) => Promise<T>): Promise<T> {
    const gate = gates.get(id) ?? { writer: Promise.resolve(), readers: new Set(), users: 0 };
    gates.set(id, gate);
    gate.users++;
    try {
      return await work(gate);
    } finally {
      if (--gate.users === 0) gates.delete(id);
    }
  }

  const settled = (promise: Promise<unknown>) =>
    promise.then(
      () => {},
      () => {},
    );

  return {
    shared: (id, work) =>
      within(id, (gate) => {
        const result = gate.writer.then(work);
        const done = settled(result);
        gate.readers.add(done);
        void done.then(() => gate.readers.delete(done));
        return result;
      }),
    exclusive: (id, work) =>
      within(id, (gate) => {
        const result = Promise.all([gate.writer, ...gate.readers]).then(work);
        gate.writer = settled(result);
        return result;
      }),
  };
}
