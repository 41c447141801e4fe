// What /metrics shows, in the words of Prometheus.
import type { Operation } from '@coppice/contract';
import { Gauge, Histogram, Registry } from 'prom-client';

export interface Metrics {
  answered(operation: Operation, status: number, durationMs: number): void;
  render(gauges: Record<string, number>): Promise<{ contentType: string; text: string }>;
}

export function createMetrics(): Metrics {
  const registry = new Registry();
  const durations = new Histogram({
    name: 'coppice_http_request_duration_seconds',
    help: 'Duration of HTTP requests',
    labelNames: ['operation', 'status'],
    buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10],
    registers: [registry],
  });
  const memory = new Gauge({
    name: 'coppice_resident_memory_bytes',
    help: 'Memory of the service process',
    registers: [registry],
  });
  const gauges = new Map<string, Gauge>();
  // One observer an (operation, status), found without building a key for every request.
  const observers = new Map<Operation, Map<number, { observe(value: number): void }>>();

  return {
    answered(operation, status, durationMs) {
      let byStatus = observers.get(operation);
      if (!byStatus) observers.set(operation, (byStatus = new Map()));
      let observer = byStatus.get(status);
      if (!observer) {
        observer = durations.labels({ operation: operation.id, status: String(status) });
        byStatus.set(status, observer);
      }
      observer.observe(durationMs / 1000);
    },
    async render(values) {
      memory.set(process.memoryUsage.rss());
      for (const [name, value] of Object.entries(values)) {
        let gauge = gauges.get(name);
        if (!gauge) {
          gauge = new Gauge({ name: `coppice_${name}`, help: name, registers: [registry] });
          gauges.set(name, gauge);
        }
        gauge.set(value);
      }
      return { contentType: registry.contentType, text: await registry.metrics() };
    },
  };
}
