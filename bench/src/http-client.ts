// A lean keep-alive HTTP client, so that the client side costs little and the same for everyone.
import { Pool } from 'undici';

export interface HttpClient {
  request(
    method: 'GET' | 'POST' | 'DELETE',
    path: string,
    body?: unknown,
  ): Promise<{ status: number; text: string }>;
  close(): Promise<void>;
}

export function createHttpClient(
  baseUrl: string,
  options: { token?: string; connections?: number } = {},
): HttpClient {
  const pool = new Pool(baseUrl, { connections: options.connections ?? 1, pipelining: 1 });
  const authorization =
    options.token === undefined ? {} : { authorization: `Bearer ${options.token}` };
  return {
    async request(method, path, body) {
      const response = await pool.request({
        method,
        path,
        headers: {
          ...authorization,
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
      const text = await response.body.text();
      if (response.statusCode >= 300)
        throw new Error(`${method} ${path}: ${response.statusCode} ${text.slice(0, 300)}`);
      return { status: response.statusCode, text };
    },
    close: () => pool.close(),
  };
}
