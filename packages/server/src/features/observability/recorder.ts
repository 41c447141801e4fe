// What ran in the last 60 s, a database: the service's memory of it, nothing on disk. Bounded: a
// fixed number of queries a database, and a database is forgotten when nothing has happened for as
// long as the window is.
import { setTimeout as delay } from 'node:timers/promises';
import type { QueryRecorder } from '../../kernel/query-recorder.ts';
import { LatencyWindow, windowMs } from './latency-window.ts';
import { mask, maskQuoted, type Normalizer } from './normalizer.ts';

export interface QuerySample {
  query: string;
  sample_count: number;
  error_count: number;
  latency_avg_ms: number;
  latency_p99_ms: number;
  latency_max_ms: number;
  last_seen_ms_ago: number;
}

export interface Measured {
  tps: number;
  averageMs: number;
  p99Ms: number;
  activeConnections: number;
  samples: QuerySample[];
}

export interface Recorder extends QueryRecorder {
  measured(databaseId: string): Promise<Measured>;
  /** Something happened in the database that is no query of its customer's. */
  touch(databaseId: string): void;
  /** The same number: nothing happened in the database in between. */
  activity(databaseId: string): number;
  close(): void;
}

interface Series {
  query: string;
  fingerprint: string;
  window: LatencyWindow;
}

interface Record {
  total: LatencyWindow;
  connections: number;
  /** Exact texts seen lately, so that a repeated one costs a look-up. */
  byText: Map<string, Series>;
  byMask: Map<string, Series>;
  byFingerprint: Map<string, Series>;
}

const activitiesLimit = 50_000;
const textsPerDatabase = 500;
const seriesPerDatabase = 300;
const samplesShown = 50;
const queryCharacters = 512;
const parsedCharacters = 8 * 1024;
const patienceMs = 2_000;
/** Longer texts are told apart by their beginning. */
const keptCharacters = 2 * 1024;

export function createRecorder(normalizer: Normalizer, now = () => performance.now()): Recorder {
  const records = new Map<string, Record>();
  /** Outlives the records; a database that is not in it had its last activity before `floor`. */
  const activities = new Map<string, number>();
  let sequence = 0;
  let floor = 0;
  const sweeper = setInterval(sweep, windowMs / 2).unref();

  function touch(databaseId: string): void {
    if (activities.size >= activitiesLimit) {
      activities.clear();
      floor = ++sequence;
    }
    activities.set(databaseId, ++sequence);
  }

  function recordOf(databaseId: string): Record {
    let record = records.get(databaseId);
    if (!record) {
      record = {
        total: new LatencyWindow(),
        connections: 0,
        byText: new Map(),
        byMask: new Map(),
        byFingerprint: new Map(),
      };
      records.set(databaseId, record);
    }
    return record;
  }

  function sweep(): void {
    const oldestMs = now() - windowMs;
    for (const [databaseId, record] of records) {
      if (record.total.lastSeenMs < oldestMs && record.connections === 0) {
        records.delete(databaseId);
        continue;
      }
      record.byText.clear();
      for (const [masked, series] of record.byMask)
        if (series.window.lastSeenMs < oldestMs) record.byMask.delete(masked);
      for (const [fingerprint, series] of record.byFingerprint)
        if (series.window.lastSeenMs < oldestMs) record.byFingerprint.delete(fingerprint);
    }
  }

  function seriesOf(record: Record, text: string): Series {
    const key = text.length > keptCharacters ? text.slice(0, keptCharacters) : text;
    const known = record.byText.get(key);
    if (known) return known;
    const masked = mask(key);
    let series = record.byMask.get(masked);
    if (!series) {
      series = { query: masked, fingerprint: masked, window: new LatencyWindow() };
      if (record.byMask.size >= seriesPerDatabase) dropOldest(record);
      record.byMask.set(masked, series);
      if (text.length <= parsedCharacters) refine(record, masked, series, text);
      else settle(record, masked, series, masked);
    }
    if (record.byText.size >= textsPerDatabase) record.byText.clear();
    record.byText.set(key, series);
    return series;
  }

  /** Gives the series its proper name once the parser has spoken; equal ones become one. */
  function refine(record: Record, masked: string, series: Series, text: string): void {
    normalizer.normalize(text, (normalized) => {
      if (normalized)
        settle(record, masked, series, maskQuoted(normalized.query), normalized.fingerprint);
      else settle(record, masked, series, masked);
    });
  }

  function settle(
    record: Record,
    masked: string,
    series: Series,
    query: string,
    fingerprint = query,
  ): void {
    series.query = query.slice(0, queryCharacters).toWellFormed();
    series.fingerprint = fingerprint;
    const same = record.byFingerprint.get(fingerprint);
    if (!same) record.byFingerprint.set(fingerprint, series);
    else if (same !== series) {
      same.window.absorb(series.window);
      record.byMask.set(masked, same);
      record.byText.clear();
    }
  }

  function dropOldest(record: Record): void {
    let oldest: [string, Series] | undefined;
    for (const entry of record.byMask)
      if (!oldest || entry[1].window.lastSeenMs < oldest[1].window.lastSeenMs) oldest = entry;
    if (!oldest) return;
    record.byMask.delete(oldest[0]);
    const { fingerprint } = oldest[1];
    if (record.byFingerprint.get(fingerprint) === oldest[1])
      record.byFingerprint.delete(fingerprint);
    record.byText.clear();
  }

  return {
    query(databaseId, durationMs, failed, text) {
      const record = recordOf(databaseId);
      const nowMs = now();
      touch(databaseId);
      record.total.record(nowMs, durationMs, failed);
      if (text !== undefined) seriesOf(record, text).window.record(nowMs, durationMs, failed);
    },

    connection(databaseId) {
      const record = recordOf(databaseId);
      record.connections++;
      touch(databaseId);
      let isOpen = true;
      return () => {
        if (isOpen) record.connections--;
        isOpen = false;
      };
    },

    async measured(databaseId) {
      // Queries get their proper names in the background; a moment's patience shows them.
      await Promise.race([normalizer.settled(), delay(patienceMs, undefined, { ref: false })]);
      const record = records.get(databaseId);
      const nowMs = now();
      const total = (record?.total ?? new LatencyWindow()).summarize(nowMs);
      const samples = [...new Set(record?.byMask.values() ?? [])]
        .map(({ query, window }) => ({ query, window, summary: window.summarize(nowMs) }))
        .filter(({ summary }) => summary.count > 0)
        .sort((a, b) => b.summary.averageMs - a.summary.averageMs)
        .slice(0, samplesShown)
        .map(({ query, window, summary }) => ({
          query: query.slice(0, queryCharacters),
          sample_count: summary.count,
          error_count: summary.errors,
          latency_avg_ms: rounded(summary.averageMs),
          latency_p99_ms: rounded(summary.p99Ms),
          latency_max_ms: rounded(summary.maxMs),
          last_seen_ms_ago: Math.max(0, Math.round(nowMs - window.lastSeenMs)),
        }));
      return {
        tps: rounded(total.count / (windowMs / 1000)),
        averageMs: rounded(total.averageMs),
        p99Ms: rounded(total.p99Ms),
        activeConnections: record?.connections ?? 0,
        samples,
      };
    },

    touch,
    activity: (databaseId) => activities.get(databaseId) ?? floor,
    close: () => clearInterval(sweeper),
  };
}

const rounded = (value: number) => Math.round(value * 1000) / 1000;
