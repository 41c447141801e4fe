// What the service offers beside the contract: health, metrics, its public keys, its description.
import { type FastifyInstance, type FastifyReply, type FastifyRequest, fastify } from 'fastify';
import { Gauge, Histogram, Registry } from 'prom-client';
import { openApiDocument } from './openapi.ts';

export interface ServiceEndpointsDeps {
  publicUrl: () => string;
  /** Rejects while the service cannot serve. */
  checkReady(): Promise<void>;
  jwks(): object;
  /** Gauges, read when /metrics is asked. */
  gauges(): Record<string, number>;
}

export function addServiceEndpoints(app: FastifyInstance, deps: ServiceEndpointsDeps): void {
  app.get('/healthz', () => ({ status: 'ok' }));
  app.get('/readyz', async (request, reply) => {
    try {
      await deps.checkReady();
      return { status: 'ready' };
    } catch (error) {
      request.log.warn({ err: error }, 'not ready');
      return reply.code(503).send({ message: 'not ready: the control database does not answer' });
    }
  });
  app.get('/.well-known/jwks.json', () => deps.jwks());
  addMetrics(app, deps);

  app.get('/openapi.json', () => openApiDocument(deps.publicUrl()));
  addDocs(app);
  app.get('/', (_request, reply) => reply.redirect('/docs/'));
}

/** The reference page is megabytes of script, so it is loaded when someone first looks at it. */
function addDocs(app: FastifyInstance): void {
  let pages: Promise<FastifyInstance> | undefined;
  async function load(): Promise<FastifyInstance> {
    const { default: scalar } = await import('@scalar/fastify-api-reference');
    const docs = fastify();
    await docs.register(scalar, {
      routePrefix: '/docs',
      configuration: { url: '/openapi.json', pageTitle: 'Coppice API', telemetry: false },
    });
    return docs;
  }
  const serve = async (request: FastifyRequest, reply: FastifyReply) => {
    pages ??= load();
    const answer = await (await pages).inject({ method: 'GET', url: request.url });
    return reply.code(answer.statusCode).headers(answer.headers).send(answer.rawPayload);
  };
  app.get('/docs', serve);
  app.get('/docs/*', serve);
}

function addMetrics(app: FastifyInstance, deps: ServiceEndpointsDeps): void {
  const registry = new Registry();
  const durations = new Histogram({
    name: 'coppice_http_request_duration_seconds',
    help: 'Duration of HTTP requests',
    labelNames: ['operation', 'status'],
    buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10],
    registers: [registry],
  });
  // One observer a (route, status), found without building a key for every request.
  const observers = new WeakMap<object, Map<number, { observe(value: number): void }>>();
  app.addHook('onResponse', (request, reply, done) => {
    const { config } = request.routeOptions;
    let ofRoute = observers.get(config);
    if (!ofRoute) {
      ofRoute = new Map();
      observers.set(config, ofRoute);
    }
    let observer = ofRoute.get(reply.statusCode);
    if (!observer) {
      const operation = `${request.method} ${request.routeOptions.url ?? 'unknown'}`;
      observer = durations.labels({ operation, status: String(reply.statusCode) });
      ofRoute.set(reply.statusCode, observer);
    }
    observer.observe(reply.elapsedTime / 1000);
    done();
  });
  const memory = new Gauge({
    name: 'coppice_resident_memory_bytes',
    help: 'Memory of the service process',
    registers: [registry],
  });
  const gauges = new Map<string, Gauge>();

  app.get('/metrics', async (_request, reply) => {
    memory.set(process.memoryUsage.rss());
    for (const [name, value] of Object.entries(deps.gauges())) {
      let gauge = gauges.get(name);
      if (!gauge) {
        gauge = new Gauge({ name: `coppice_${name}`, help: name, registers: [registry] });
        gauges.set(name, gauge);
      }
      gauge.set(value);
    }
    return reply.type(registry.contentType).send(await registry.metrics());
  });
}
