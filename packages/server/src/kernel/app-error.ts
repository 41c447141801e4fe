// The closed set of failures a caller can see. Every one renders as `{"message"}` with its status;
// the cause stays in the log.

export type ErrorStatus = 400 | 401 | 403 | 404 | 409 | 422 | 429 | 500;

export class AppError extends Error {
  readonly status: ErrorStatus;
  /** For 429: how long the caller should wait. */
  readonly retryAfterSeconds: number | undefined;

  constructor(
    status: ErrorStatus,
    message: string,
    options: { cause?: unknown; retryAfterSeconds?: number } = {},
  ) {
    super(message, { cause: options.cause });
    this.name = 'AppError';
    this.status = status;
    this.retryAfterSeconds = options.retryAfterSeconds;
  }
}

export const badRequest = (message: string) => new AppError(400, message);
export const unauthorized = (message = 'invalid or expired token', cause?: unknown) =>
  new AppError(401, message, { cause });
export const forbidden = (message: string) => new AppError(403, message);
export const notFound = (what: string) => new AppError(404, `${what} not found`);
export const conflict = (message: string) => new AppError(409, message);
export const unprocessable = (message: string, cause?: unknown) =>
  new AppError(422, message, { cause });
export const rateLimited = (message: string, retryAfterSeconds: number) =>
  new AppError(429, message, { retryAfterSeconds });
export const internal = (message: string, cause?: unknown) => new AppError(500, message, { cause });
