// What the service offers beside the contract: health, metrics, its public keys, its description.
import { type FastifyInstance, type FastifyReply, type FastifyRequest, fastify } from 'fastify';
import type { Metrics } from './metrics.ts';
import { openApiDocument } from './openapi.ts';

export interface ServiceEndpointsDeps {
  publicUrl: () => string;
  /** Rejects while the service cannot serve. */
  checkReady(): Promise<void>;
  jwks(): object;
  metrics: Metrics;
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
  app.get('/metrics', async (_request, reply) => {
    const { contentType, text } = deps.metrics.render(deps.gauges());
    return reply.type(contentType).send(text);
  });

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
