// The HTTP edge: one Fastify instance built from options. Every operation runs in one order:
// authenticate, validate, load the database within the caller's account, authorize, act.
import { isUtf8 } from 'node:buffer';
import type { Operation } from '@coppice/contract';
import {
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  fastify,
  LogController,
} from 'fastify';
import { badRequest, notFound, rateLimited, unauthorized } from '../../kernel/app-error.ts';
import type { DatabaseRecord } from '../../kernel/database-record.ts';
import type { Logger } from '../../kernel/logger.ts';
import { authorize, type Principal } from '../../kernel/principal.ts';
import { Answer, type Call, JsonBytes, type Route } from '../../kernel/route.ts';
import type { TokenBuckets } from '../../kernel/token-bucket.ts';
import { renderClientError, renderError, renderNotFound } from './error-renderer.ts';
import { compileValidation } from './validation.ts';

export interface AppOptions {
  logger: Logger;
  routes: readonly Route[];
  /** Answers at once when it knows the credential; throws 401. */
  authenticate(bearer: string): Principal | Promise<Principal>;
  /** The database, if it is this account's. */
  findDatabase(
    accountKey: string,
    id: string,
  ): DatabaseRecord | undefined | Promise<DatabaseRecord | undefined>;
  requestLimits: TokenBuckets;
  /** Told of every answer: what was asked, how it went, how long it took. */
  answered(operation: Operation, status: number, durationMs: number): void;
  bodyLimitBytes: number;
  trustProxy: boolean;
}

/** A text leaves in one piece with its headers, bytes in a second one: worth a copy while small. */
const smallBytes = 16 * 1024;
/** Bodies of operations that need no credentials are small. */
const publicBodyLimitBytes = 64 * 1024;

export function buildApp(options: AppOptions): FastifyInstance {
  const app = fastify({
    loggerInstance: options.logger as FastifyBaseLogger,
    logController: new LogController({ disableRequestLogging: true }),
    exposeHeadRoutes: false,
    trustProxy: options.trustProxy,
    bodyLimit: options.bodyLimitBytes,
    // As long as a request line may be: what is too long for an identifier is simply not found.
    routerOptions: { maxParamLength: 65_536 },
    clientErrorHandler: renderClientError,
    frameworkErrors: renderError,
    forceCloseConnections: true,
    requestIdHeader: 'x-request-id',
    // A logger a request would cost more than most requests; lines name the request themselves.
    childLoggerFactory: (logger) => logger,
  });
  app.setErrorHandler(renderError);
  app.setNotFoundHandler(renderNotFound);

  app.removeAllContentTypeParsers();
  // By its name as well as by the star: Fastify finds it faster.
  for (const contentType of ['application/json', '*'])
    app.addContentTypeParser(contentType, { parseAs: 'buffer' }, (_request, body, done) => {
      try {
        done(null, parseBody(body as Buffer));
      } catch (error) {
        done(error as Error);
      }
    });
  if (options.logger.isLevelEnabled('debug'))
    app.addHook('onResponse', (request, reply, done) => {
      request.log.debug({
        request: request.id,
        method: request.method,
        path: request.routeOptions.url,
        status: reply.statusCode,
        ms: Math.round(reply.elapsedTime * 10) / 10,
      });
      done();
    });

  for (const route of options.routes) addRoute(app, route, options);
  return app;
}

function parseBody(body: Buffer): unknown {
  if (body.length === 0) return {};
  const text = body.toString('utf8');
  // What is not UTF-8 shows as this character; the body may hold it as well.
  if (text.includes('\ufffd') && !isUtf8(body)) throw badRequest('request body is not valid UTF-8');
  try {
    return JSON.parse(text);
  } catch (error) {
    throw badRequest(`request body is not valid JSON: ${(error as Error).message}`);
  }
}

declare module 'fastify' {
  interface FastifyRequest {
    principal: Principal | undefined;
  }
}

function addRoute(app: FastifyInstance, route: Route, options: AppOptions): void {
  const { operation } = route;
  const isPublic = operation.access === 'public';
  const hasDatabase = operation.path.includes('{database_id}');
  const validateParams = compileValidation(operation.params, 'path');
  const validateQuery = compileValidation(operation.query, 'query string');
  const validateBody = compileValidation(operation.body, 'request body');
  const successStatus = Number(successStatusOf(operation));

  app.route({
    method: operation.method,
    url: operation.path.replaceAll(/\{(\w+)\}/g, ':$1'),
    ...(isPublic ? { bodyLimit: publicBodyLimitBytes } : {}),
    onRequest(request, _reply, done) {
      // Bodies are JSON whatever the content type says, and an empty one is `{}`.
      if (request.headers['content-type'] !== undefined)
        request.headers['content-type'] = 'application/json';
      if (isPublic) return done();
      const admitted = admit(request, options);
      if (admitted instanceof Promise) admitted.then(() => done(), done);
      else done(admitted);
    },
    onResponse(_request, reply, done) {
      options.answered(operation, reply.statusCode, reply.elapsedTime);
      done();
    },
    async handler(request, reply) {
      const call = new HttpCall(request, reply);
      call.params = validateParams(wholeParams(request.params));
      call.query = validateQuery(request.query);
      call.body = validateBody(request.body === undefined ? {} : request.body);
      if (request.principal) {
        call.principal = request.principal;
        const on: { databaseId?: string; role?: string } = {};
        if (hasDatabase) {
          on.databaseId = call.params.database_id as string;
          if (typeof call.body.role === 'string') on.role = call.body.role;
          const looked = options.findDatabase(request.principal.accountKey, on.databaseId);
          const found = looked instanceof Promise ? await looked : looked;
          if (!found) throw notFound('database');
          call.database = found;
        }
        authorize(request.principal, operation.access, on);
      }
      const result = route.handle(call as unknown as Call);
      return send(reply, result instanceof Promise ? await result : result, successStatus);
    },
  });
}

/** Without a promise when the credential is known: this runs for every request. */
function admit(request: FastifyRequest, options: AppOptions): Error | undefined | Promise<void> {
  try {
    const principal = options.authenticate(bearerOf(request.raw.headers.authorization));
    if (principal instanceof Promise)
      return principal.then((found) => enter(request, found, options));
    enter(request, principal, options);
    return undefined;
  } catch (error) {
    return error as Error;
  }
}

function bearerOf(header: string | undefined): string {
  const match = header === undefined ? null : /^bearer +([^\s]+) *$/i.exec(header);
  if (!match) throw unauthorized('missing or malformed Authorization header');
  return match[1]!;
}

function enter(request: FastifyRequest, principal: Principal, options: AppOptions): void {
  const waitSeconds = options.requestLimits.take(principal.credentialId);
  if (waitSeconds > 0) throw rateLimited('too many requests', waitSeconds);
  request.principal = principal;
}

/** No identifier has a NUL in it, and Postgres could not even look for one. */
function wholeParams(params: unknown): unknown {
  for (const name in params as Record<string, string>)
    if ((params as Record<string, string>)[name]!.includes('\0')) throw notFound('resource');
  return params;
}

function successStatusOf(operation: Operation): string {
  // Integer-like keys come out in ascending order; 201 is the usual one where both are listed.
  const statuses = Object.keys(operation.responses);
  return statuses.includes('201') ? '201' : (statuses[0] ?? '200');
}

class HttpCall {
  principal: Principal | undefined;
  database: DatabaseRecord | undefined;
  params: Record<string, unknown> = {};
  query: Record<string, unknown> = {};
  body: Record<string, unknown> = {};
  readonly #request: FastifyRequest;
  readonly #reply: FastifyReply;
  #signal: AbortSignal | undefined;

  constructor(request: FastifyRequest, reply: FastifyReply) {
    this.#request = request;
    this.#reply = reply;
  }

  get address(): string {
    return this.#request.ip;
  }

  get isGone(): boolean {
    return this.#reply.raw.destroyed || this.#request.raw.socket?.destroyed;
  }

  /** Made only for handlers that look at it. */
  get signal(): AbortSignal {
    if (!this.#signal) {
      const controller = new AbortController();
      const { raw } = this.#reply;
      raw.once('close', () => {
        if (!raw.writableFinished) controller.abort();
      });
      if (this.isGone) controller.abort();
      this.#signal = controller.signal;
    }
    return this.#signal;
  }
}

function send(reply: FastifyReply, result: unknown, successStatus: number): FastifyReply {
  const answer = result instanceof Answer ? result : new Answer(result);
  reply.code(answer.status ?? successStatus);
  if (answer.body === undefined) return reply.send();
  reply.header('content-type', 'application/json');
  if (!(answer.body instanceof JsonBytes)) return reply.send(JSON.stringify(answer.body));
  const { bytes, release } = answer.body;
  if (bytes instanceof Buffer && bytes.length <= smallBytes) {
    const text = bytes.toString();
    release?.();
    return reply.send(text);
  }
  if (release) reply.raw.once('close', release);
  return reply.send(bytes);
}
