// Whatever is thrown at the port, the answer is HTTP with one field, and the next caller is served.
import { connect } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let account: Account;

beforeAll(async () => {
  service = await startService({
    flags: ['--body-limit-mb', '1', '--request-burst', '100', '--requests-per-second', '5'],
  });
  account = await service.api.register();
});
afterAll(() => service?.stop());

/** Sends bytes as they are and reads until the server closes. */
function raw(bytes: string | Buffer): Promise<{ status: number; body: unknown }> {
  const { hostname, port } = new URL(service.baseUrl);
  return new Promise((done, fail) => {
    const socket = connect(Number(port), hostname, () => socket.write(bytes));
    let text = '';
    socket.setEncoding('utf8').on('data', (chunk) => {
      text += chunk;
    });
    socket.once('error', fail);
    socket.once('close', () => {
      const [head = '', body = ''] = text.split('\r\n\r\n');
      done({
        status: Number(/^HTTP\/1\.1 (\d+)/.exec(head)?.[1]),
        body: body === '' ? undefined : JSON.parse(body),
      });
    });
    socket.setTimeout(10_000, () => socket.destroy(new Error('no answer')));
  });
}
const request = (line: string, headers: string[] = [], body: string | Buffer = '') =>
  Buffer.concat([
    Buffer.from(
      `${[line, 'Host: x', 'Connection: close', `Authorization: Bearer ${account.token}`, ...headers].join('\r\n')}\r\n\r\n`,
    ),
    Buffer.from(body),
  ]);
const withBody = (line: string, body: string | Buffer, headers: string[] = []) =>
  request(line, [`Content-Length: ${Buffer.byteLength(body)}`, ...headers], body);

const oneField = { message: expect.stringMatching(/./) };

test.each<[string, () => string | Buffer, number]>([
  ['what is not HTTP', () => 'nonsense\r\n\r\n', 400],
  ['an unknown HTTP version', () => 'GET / HTTP/9.9\r\n\r\n', 400],
  [
    'endless headers',
    () => request('GET /customer/me HTTP/1.1', [`X: ${'x'.repeat(100_000)}`]),
    400,
  ],
  ['a path that does not decode', () => request('GET /customer/databases/%zz HTTP/1.1'), 400],
  ['a NUL in the path', () => request('GET /customer/databases/%00 HTTP/1.1'), 404],
  ['a very long path', () => request(`GET /customer/databases/${'x'.repeat(8000)} HTTP/1.1`), 404],
  ['a slash too many', () => request('GET //customer/me HTTP/1.1'), 404],
  [
    'invalid UTF-8',
    () => withBody('POST /customer/tokens HTTP/1.1', Buffer.from([0x7b, 0xff, 0xfe, 0x7d])),
    400,
  ],
  ['a deep body', () => withBody('POST /customer/tokens HTTP/1.1', '['.repeat(50_000)), 400],
  [
    'a gzip that is not said to be one',
    () => withBody('POST /customer/tokens HTTP/1.1', Buffer.from([31, 139, 8, 0])),
    400,
  ],
  [
    'a body over the limit',
    () =>
      withBody('POST /customer/tokens HTTP/1.1', JSON.stringify({ name: 'x'.repeat(1_100_000) })),
    400,
  ],
])('%s', async (_name, bytes, status) => {
  expect(await raw(bytes())).toEqual({ status, body: oneField });
  expect((await service.api.call('GET', '/healthz')).status).toBe(200);
});

test('content types do not matter, chunks do not either', async () => {
  const body = '{"name":"x"}';
  for (const type of [
    'text/plain',
    'application/x-www-form-urlencoded',
    'nonsense',
    'application/json; charset=latin1',
  ])
    expect(
      (await raw(withBody('POST /customer/tokens HTTP/1.1', body, [`Content-Type: ${type}`])))
        .status,
    ).toBe(201);
  const chunked = `c\r\n${body}\r\n0\r\n\r\n`;
  expect(
    (await raw(request('POST /customer/tokens HTTP/1.1', ['Transfer-Encoding: chunked'], chunked)))
      .status,
  ).toBe(201);
  expect((await raw(withBody('POST /customer/tokens HTTP/1.1', ''))).status).toBe(201);
  expect(
    (
      await raw(
        withBody('DELETE /customer/tokens/tok_x HTTP/1.1', '', ['Content-Type: application/json']),
      )
    ).status,
  ).toBe(404);
});

test('health, readiness, metrics, keys and the description are public', async () => {
  const get = (path: string) => service.api.call('GET', path);
  expect((await get('/healthz')).status).toBe(200);
  expect((await get('/readyz')).status).toBe(200);
  expect((await get('/metrics')).text).toContain('coppice_http_request_duration_seconds_bucket');
  const { keys } = (await get('/.well-known/jwks.json')).body;
  expect(keys.length).toBeGreaterThan(0);
  for (const key of keys) expect(key).not.toHaveProperty('d');
  const document = (await get('/openapi.json')).body;
  expect(document.openapi).toMatch(/^3\.1/);
  expect(Object.keys(document.paths)).toContain('/customer/databases/{database_id}/sql');
  expect((await get('/docs/')).text).toContain('<html');
});

test('no log line holds a credential', async () => {
  await account.post('/customer/tokens', { name: 1 });
  await service.api.call('GET', '/customer/me', { token: 'cop_pat_leaked' });
  expect(service.log()).not.toContain(account.token);
  expect(service.log()).not.toContain('cop_pat_leaked');
});

test('429 with Retry-After for a burst of one credential; others are served', async () => {
  const other = await service.api.register();
  const answers = await Promise.all(Array.from({ length: 150 }, () => other.get('/customer/me')));
  const refused = answers.filter((answer) => answer.status === 429);
  expect(refused.length).toBeGreaterThan(10);
  for (const answer of refused) {
    expect(answer.body).toEqual(oneField);
    expect(Number(answer.headers.get('retry-after'))).toBeGreaterThan(0);
  }
  expect((await account.get('/customer/me')).status).toBe(200);
});
