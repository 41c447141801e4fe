// The figures of one database. Looking at them neither wakes it, but once, nor keeps it awake: what
// its files amount to is remembered for as long as nothing has happened in it.
import type { Engine } from '../../engine/engine.ts';
import type { Sessions } from '../../engine/sessions.ts';
import { windowMs } from './latency-window.ts';
import type { QuerySample, Recorder } from './recorder.ts';
import { fileBytes } from './store.ts';

export interface Observation {
  window_seconds: number;
  summary: {
    tps: number;
    latency_avg_ms: number;
    latency_p99_ms: number;
    active_connections: number;
    database_storage_bytes: number;
    fs_logical_bytes: number;
  };
  samples: QuerySample[];
}

export interface ObservabilityService {
  observe(databaseId: string, signal: AbortSignal): Promise<Observation>;
}

interface Remembered {
  bytes: number;
  /** What had been recorded about the database by then. */
  activity: number;
}
const rememberedLimit = 10_000;

export function createObservabilityService(deps: {
  engine: Pick<Engine, 'sizeBytes'>;
  sessions: Sessions;
  recorder: Recorder;
}): ObservabilityService {
  const { engine, sessions, recorder } = deps;
  const remembered = new Map<string, Remembered>();

  async function filesOf(databaseId: string, signal: AbortSignal): Promise<number> {
    const known = remembered.get(databaseId);
    const activity = recorder.activity(databaseId);
    if (known?.activity === activity) return known.bytes;
    const bytes = await sessions.use(databaseId, { role: 'postgres', signal }, fileBytes);
    if (remembered.size >= rememberedLimit) remembered.clear();
    remembered.set(databaseId, { bytes, activity });
    return bytes;
  }

  return {
    async observe(databaseId, signal) {
      const [storageBytes, filesBytes] = await Promise.all([
        engine.sizeBytes(databaseId),
        filesOf(databaseId, signal),
      ]);
      const measured = await recorder.measured(databaseId);
      const { tps, averageMs, p99Ms, activeConnections, samples } = measured;
      return {
        window_seconds: windowMs / 1000,
        summary: {
          tps,
          latency_avg_ms: averageMs,
          latency_p99_ms: p99Ms,
          active_connections: activeConnections,
          database_storage_bytes: storageBytes,
          fs_logical_bytes: filesBytes,
        },
        samples,
      };
    },
  };
}
