// Whoever raised it (a feature, the router, the body parser, a crash), a client sees one field:
// `{"message"}`.
import type { Socket } from 'node:net';
import type { FastifyError, FastifyReply, FastifyRequest } from 'fastify';
import { AppError } from '../../kernel/app-error.ts';

export function renderError(
  error: FastifyError | Error,
  request: FastifyRequest,
  reply: FastifyReply,
): void {
  const seen = asAppError(error);
  if (seen.status === 500)
    request.log.error(
      { err: error, request: request.id, path: request.routeOptions.url },
      'request failed',
    );
  if (seen.retryAfterSeconds !== undefined) reply.header('retry-after', seen.retryAfterSeconds);
  if (seen.status === 401) reply.header('www-authenticate', 'Bearer');
  reply
    .code(seen.status)
    .type('application/json')
    .send(JSON.stringify({ message: seen.message }));
}

export function renderNotFound(request: FastifyRequest, reply: FastifyReply): void {
  const message = `no such endpoint: ${request.method} ${request.url.split('?')[0]}`;
  reply.code(404).type('application/json').send(JSON.stringify({ message }));
}

/** What is not even HTTP never reaches a route. */
export function renderClientError(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) return void socket.destroy();
  const message =
    error.code === 'HPE_HEADER_OVERFLOW'
      ? 'request headers are too large'
      : 'malformed HTTP request';
  const body = JSON.stringify({ message });
  socket.end(
    `HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  );
}

function asAppError(error: FastifyError | Error): AppError {
  if (error instanceof AppError) return error;
  const { code, statusCode } = error as FastifyError;
  if (code === 'FST_ERR_CTP_BODY_TOO_LARGE')
    return new AppError(400, 'request body is larger than this service accepts');
  // The only other failures with a status come from the framework's reading of the request.
  if (typeof code === 'string' && code.startsWith('FST_ERR') && statusCode && statusCode < 500)
    return new AppError(statusCode === 404 ? 404 : 400, error.message);
  return new AppError(500, 'internal error', { cause: error });
}
