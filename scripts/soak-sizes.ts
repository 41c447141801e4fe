// How large the fuzz, chaos and property tests are: small in `npm test`, full in `npm run soak`, where
// every size is a flag (`--connects 500`).

interface Size {
  about: string;
  test: number;
  soak: number;
}

export const sizes = {
  connects: { about: 'connects and disconnects at the Postgres port', test: 400, soak: 10_000 },
  'abrupt-ends': { about: 'connections cut in mid-query', test: 80, soak: 1_000 },
  packets: { about: 'malformed start-up packets', test: 1_500, soak: 100_000 },
  'service-kills': { about: 'kill -9 of the service under writes', test: 2, soak: 10 },
  'written-databases': { about: 'databases written to meanwhile', test: 5, soak: 20 },
  'server-kills': { about: 'kill -9 while databases are made and deleted', test: 2, soak: 20 },
  'made-databases': { about: 'databases made meanwhile', test: 6, soak: 20 },
  'file-kills': { about: 'kill -9 while files are written', test: 2, soak: 10 },
  'history-kills': { about: 'kill -9 in a branch, a backup, a restore', test: 2, soak: 20 },
  'pruning-kills': { about: 'kill -9 while old history is removed', test: 3, soak: 25 },
  instants: { about: 'branches at random instants', test: 10, soak: 200 },
  'loaded-branches': { about: 'branches under a TPC-B load', test: 3, soak: 30 },
  'flipped-bytes': { about: 'damaged bytes of a backup', test: 400, soak: 1_000_000 },
  'sql-texts': { about: 'random SQL texts and bodies', test: 400, soak: 10_000 },
  'sql-values': { about: 'random values compared with to_json', test: 100, soak: 2_000 },
  'dump-rows': { about: 'rows dumped and replayed', test: 20_000, soak: 100_000 },
  'file-sequences': {
    about: 'random sequences of file operations against a model',
    test: 60,
    soak: 2_000,
  },
  'upload-mb': { about: 'size of an interrupted upload in MB', test: 20, soak: 200 },
  invocations: {
    about: 'runs of functions with random failures',
    test: 300,
    soak: 10_000,
  },
} satisfies Record<string, Size>;

export type SizeName = keyof typeof sizes;

export const isSoak = process.env.COPPICE_SOAK !== undefined;

export const variableOf = (name: SizeName) =>
  `COPPICE_SOAK_${name.toUpperCase().replaceAll('-', '_')}`;

export function sizeOf(name: SizeName): number {
  const { test, soak } = sizes[name];
  return Number(process.env[variableOf(name)] ?? (isSoak ? soak : test));
}

/** The limit of a test whose size this file decides. */
export const timeLimitMs = (testMs: number) => (isSoak ? 4 * 3_600_000 : testMs);

/** The same in every `npm test`; `npm run soak` chooses one. */
export const seed = Number(process.env.COPPICE_SEED ?? 42);

/** A small generator of numbers below 1 that a seed repeats (mulberry32). */
export function randomFrom(start: number): () => number {
  let state = start;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}
