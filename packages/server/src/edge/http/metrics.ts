// What /metrics shows, in Prometheus's text format: https://prometheus.io/docs/instrumenting/exposition_formats/
import type { Operation } from '@coppice/contract';

export interface Metrics {
  answered(operation: Operation, status: number, durationMs: number): void;
  render(gauges: Record<string, number>): { contentType: string; text: string };
}

const bucketsSeconds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10];
const durations = 'coppice_http_request_duration_seconds';

/** Durations of one operation with one status. */
class Durations {
  /** Observations a bucket; the last one is for what is longer than all of them. */
  readonly counts = new Float64Array(bucketsSeconds.length + 1);
  sumSeconds = 0;

  observe(seconds: number): void {
    let bucket = 0;
    while (bucket < bucketsSeconds.length && seconds > bucketsSeconds[bucket]!) bucket++;
    this.counts[bucket]!++;
    this.sumSeconds += seconds;
  }
}

export function createMetrics(): Metrics {
  const observed = new Map<Operation, Map<number, Durations>>();

  function* lines(gauges: Record<string, number>): Generator<string> {
    yield `# HELP ${durations} Duration of HTTP requests`;
    yield `# TYPE ${durations} histogram`;
    for (const [operation, byStatus] of observed)
      for (const [status, { counts, sumSeconds }] of byStatus) {
        const labels = `operation="${operation.id}",status="${status}"`;
        let count = 0;
        for (const [index, limit] of [...bucketsSeconds, '+Inf'].entries()) {
          count += counts[index]!;
          yield `${durations}_bucket{le="${limit}",${labels}} ${count}`;
        }
        yield `${durations}_sum{${labels}} ${sumSeconds}`;
        yield `${durations}_count{${labels}} ${count}`;
      }
    for (const [name, value] of Object.entries(gauges)) {
      yield `# TYPE coppice_${name} gauge`;
      yield `coppice_${name} ${value}`;
    }
  }

  return {
    answered(operation, status, durationMs) {
      let byStatus = observed.get(operation);
      if (!byStatus) observed.set(operation, (byStatus = new Map()));
      let entry = byStatus.get(status);
      if (!entry) byStatus.set(status, (entry = new Durations()));
      entry.observe(durationMs / 1000);
    },
    render(gauges) {
      const all = { resident_memory_bytes: process.memoryUsage.rss(), ...gauges };
      return {
        contentType: 'text/plain; version=0.0.4; charset=utf-8',
        text: `${[...lines(all)].join('\n')}\n`,
      };
    },
  };
}
