// The life of one instance, as a state machine:
//
//            ┌──────────── held ◄───┐          (history reads the stopped directory)
//            ▼                      │
//   ┌──► asleep ──► starting ──► awake ──► stopping ──┐
//   │      │ ▲          │                             │
//   │      │ └──────────┴─ (did not start)            │
//   │      └──► removing                              │
//   └─────────────────────────────────────────────────┘
//
// `asleep` means: no process, nothing in memory but this object, which may be dropped. Every phase
// that lasts has `done`; whoever finds it waits and looks again. A crash is `awake → stopping`
// without being asked. Only `move` changes the phase.
import type { Postmaster } from './postmaster.ts';

export type Phase =
  | { name: 'asleep' }
  | { name: 'held'; done: Promise<unknown> }
  | { name: 'starting'; done: Promise<unknown> }
  | Awake
  | { name: 'stopping'; done: Promise<unknown> }
  | { name: 'removing'; done: Promise<unknown> };

export interface Awake {
  name: 'awake';
  postmaster: Postmaster;
  /** How many hold it awake. */
  leases: number;
  /** Aborted when it goes away under them. */
  gone: AbortController;
  idleSinceMs: number;
  idleTimer: NodeJS.Timeout | undefined;
}

export interface Instance {
  readonly id: string;
  readonly phase: Phase;
}

const allowed: Record<Phase['name'], readonly Phase['name'][]> = {
  // Straight to `awake`: history hands over a server that runs already.
  asleep: ['held', 'starting', 'awake', 'removing'],
  held: ['asleep'],
  starting: ['awake', 'asleep'],
  awake: ['stopping'],
  stopping: ['asleep'],
  removing: ['asleep'],
};

export interface Instances {
  /** The instance of that id; one nobody has touched is asleep. */
  get(id: string): Instance;
  move(instance: Instance, next: Phase): void;
  awake(): { instance: Instance; phase: Awake }[];
  all(): Iterable<Instance>;
  /** Instances that are, or are about to be, processes. */
  readonly running: number;
}

export function createInstances(onMove: (instance: Instance, from: Phase) => void): Instances {
  const known = new Map<string, { id: string; phase: Phase }>();
  const hasProcess = (phase: Phase) =>
    phase.name === 'starting' || phase.name === 'awake' || phase.name === 'stopping';
  let running = 0;

  return {
    get running() {
      return running;
    },
    get: (id) => known.get(id) ?? { id, phase: { name: 'asleep' } },
    all: () => known.values(),
    awake: () =>
      [...known.values()].flatMap((instance) =>
        instance.phase.name === 'awake' ? [{ instance, phase: instance.phase }] : [],
      ),
    move({ id }, next) {
      const instance = known.get(id) ?? { id, phase: { name: 'asleep' } as Phase };
      const from = instance.phase;
      if (!allowed[from.name].includes(next.name))
        throw new Error(`${id}: ${from.name} → ${next.name} is no transition`);
      instance.phase = next;
      running += Number(hasProcess(next)) - Number(hasProcess(from));
      if (next.name === 'asleep') known.delete(id);
      else known.set(id, instance);
      onMove(instance, from);
    },
  };
}
