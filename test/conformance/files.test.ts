// Longer than other files: the whole wire protocol against one running service, message by message.
// The files from outside: HTTP to get in, then the WebSocket, message by message.
import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { connectFiles } from '@coppice/sdk';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { sizeOf } from '../../scripts/soak-sizes.ts';
import type { Account, CreatedDatabase } from '../support/api.ts';
import { type FileSocket, openFileSocket, sha256 } from '../support/file-socket.ts';
import { type RunningService, startService } from '../support/service.ts';

const interruptedBytes = sizeOf('upload-mb') * 1_000_000;

let service: RunningService;
let account: Account;
let database: CreatedDatabase;
let url: string;
let sockets: FileSocket[] = [];

beforeAll(async () => {
  service = await startService({ flags: ['--files-quota-mb', '400', '--files-connections', '24'] });
  account = await service.api.register();
  database = await account.database();
  const { status, body } = await account.post(`/customer/databases/${database.id}/fs-connect`);
  expect({ status, body }).toMatchObject({
    status: 200,
    body: {
      database_id: database.id,
      database_name: database.name,
      admin_user: 'admin',
      admin_password: database.admin_password,
    },
  });
  url = body.fs_websocket_url;
});
afterAll(async () => {
  for (const socket of sockets) socket.terminate();
  await service?.stop();
});

async function connect(
  password = database.admin_password,
  role = 'admin',
  id = database.id,
): Promise<FileSocket> {
  const socket = await openFileSocket(url.replace(database.id, id));
  sockets = [...sockets.filter((it) => it.socket.readyState < 2), socket];
  const reply = await socket.ask({ op: 'auth', username: `${id}.${role}`, password });
  if (!reply.ok) throw Object.assign(new Error(reply.error!.message), reply.error, { socket });
  return socket;
}

const key = async (body: object) =>
  (await account.post(`/customer/databases/${database.id}/connect-keys`, body)).body;
const failed = (code: string) => ({ ok: false, error: { code } });
const logicalBytes = async () =>
  (await account.get(`/customer/databases/${database.id}/observability`)).body.summary
    .fs_logical_bytes;

describe('getting in', () => {
  test('with the password, a connect token, a connect key', async () => {
    const token = await account.post(`/customer/databases/${database.id}/connect-token`, {
      role: 'admin',
    });
    expect(token.body.fs_websocket_url).toBe(url);
    const { connect_key } = await key({ role: 'admin' });
    for (const password of [database.admin_password, token.body.token, connect_key]) {
      const socket = await openFileSocket(url);
      const reply = await socket.ask({ op: 'auth', username: `${database.id}:admin`, password });
      expect(reply).toEqual({
        id: 1,
        ok: true,
        data: {
          database_id: database.id,
          role: 'admin',
          scopes: expect.arrayContaining(['fs:read', 'fs:write']),
        },
      });
      expect(await socket.ask({ op: 'stat', path: '/' })).toMatchObject({ ok: true });
      socket.close();
    }
  });

  test('not with anything else: EAUTH, and the connection ends', async () => {
    const stranger = await service.api.register();
    const other = await stranger.database();
    const token = (
      await account.post(`/customer/databases/${database.id}/connect-token`, { role: 'readonly' })
    ).body.token;
    const attempts: [string, string][] = [
      [`${database.id}.admin`, 'wrong'],
      [`${database.id}.admin`, ''],
      [`${database.id}.admin`, other.admin_password],
      [`${database.id}.admin`, account.token],
      [`${database.id}.admin`, token],
      [`${database.id}.nobody`, database.admin_password],
      [`${database.id}.postgres`, ''],
      [`${other.id}.admin`, other.admin_password],
      ['admin', database.admin_password],
    ];
    for (const [username, password] of attempts) {
      const socket = await openFileSocket(url);
      const reply = await socket.ask({ op: 'auth', username, password });
      expect({ username, reply }).toMatchObject({ reply: failed('EAUTH') });
      expect(await socket.closed).toMatchObject({ code: 4401 });
    }
  });

  test('the first message must authenticate', async () => {
    const socket = await openFileSocket(url);
    expect(await socket.ask({ op: 'stat', path: '/' })).toMatchObject(failed('EAUTH'));
    expect(await socket.closed).toMatchObject({ code: 4401 });
  });

  test('requests may follow auth without waiting for its answer', async () => {
    const socket = await openFileSocket(url);
    const username = `${database.id}.admin`;
    socket.send({ id: 'a', op: 'auth', username, password: database.admin_password });
    socket.send({ id: 'b', op: 'stat', path: '/' });
    expect(await socket.next()).toMatchObject({ id: 'a', ok: true });
    expect(await socket.next()).toMatchObject({ id: 'b', ok: true, data: { type: 'directory' } });
    socket.close();
  });

  test('within 10 s', async () => {
    const socket = await openFileSocket(url);
    const began = Date.now();
    expect(await socket.next()).toMatchObject({ id: null, ...failed('EAUTH') });
    expect(await socket.closed).toMatchObject({ code: 4401 });
    expect(Date.now() - began).toBeGreaterThan(9_000);
    expect(Date.now() - began).toBeLessThan(15_000);
  });

  test('a path that is no database: 404 with a message, no WebSocket', async () => {
    for (const path of ['/fs', '/fs/', '/fs/..', '/fs/nothing', '/elsewhere'])
      await expect(openFileSocket(service.baseUrl.replace('http', 'ws') + path)).rejects.toThrow(
        /404/,
      );
    await expect(connect('x', 'admin', 'db_aaaaaaaaaaaaaaaaaaaa')).rejects.toMatchObject({
      code: 'EAUTH',
    });
  });

  test('what a credential may: scopes of keys, role of tokens', async () => {
    const admin = await connect();
    await admin.ask({ op: 'write', path: '/scoped', content: 'text' });
    const outcomes = async (socket: FileSocket) => [
      (await socket.ask({ op: 'read', path: '/scoped' })).error?.code ?? 'ok',
      (await socket.ask({ op: 'write', path: '/scoped', content: 'text' })).error?.code ?? 'ok',
      (await socket.upload({ op: 'write', path: '/scoped' }, Buffer.from('text'))).error?.code ??
        'ok',
      (await socket.ask({ op: 'watch', path: '/' })).error?.code ?? 'ok',
    ];
    const read = await key({ scopes: ['fs:read'] });
    const write = await key({ scopes: ['fs:write'] });
    const both = await key({ scopes: ['fs:read', 'fs:write'] });
    const neither = await key({ scopes: ['db:connect'] });
    const readonlyKey = await key({ role: 'readonly' });
    const token = (
      await account.post(`/customer/databases/${database.id}/connect-token`, { role: 'readonly' })
    ).body.token;
    const denied = 'EACCES';
    expect(await outcomes(await connect(read.connect_key))).toEqual(['ok', denied, denied, 'ok']);
    expect(await outcomes(await connect(write.connect_key))).toEqual([denied, 'ok', 'ok', denied]);
    expect(await outcomes(await connect(both.connect_key))).toEqual(['ok', 'ok', 'ok', 'ok']);
    await expect(connect(neither.connect_key)).rejects.toMatchObject({ code: denied });
    for (const password of [readonlyKey.connect_key, token])
      expect(await outcomes(await connect(password, 'readonly'))).toEqual([
        'ok',
        denied,
        denied,
        'ok',
      ]);
    const anon = (
      await account.post(`/customer/databases/${database.id}/connect-token`, { role: 'anon' })
    ).body.token;
    expect(await outcomes(await connect(anon, 'anon'))).toEqual([denied, denied, denied, denied]);
  });

  test('a revoked key ends its connections, and its uploads leave nothing', async () => {
    const { id, connect_key } = await key({});
    const socket = await connect(connect_key);
    const { data } = await socket.ask({ op: 'write', path: '/revoked', stream: true });
    socket.frame(data.stream, randomBytes(100_000));
    await account.delete(`/customer/databases/${database.id}/connect-keys/${id}`);
    expect(await socket.closed).toMatchObject({ code: 4403 });
    await expect(connect(connect_key)).rejects.toMatchObject({ code: 'EAUTH' });
    const admin = await connect();
    expect(await admin.ask({ op: 'stat', path: '/revoked' })).toMatchObject(failed('ENOENT'));
  });

  test('a deleted database ends them too', async () => {
    const doomed = await account.database();
    const socket = await connect(doomed.admin_password, 'admin', doomed.id);
    await socket.ask({ op: 'write', path: '/x', content: 'x' });
    await account.delete(`/customer/databases/${doomed.id}`);
    expect(await socket.closed).toMatchObject({ code: 4403 });
  });
});

test('every operation, as it is on the wire', async () => {
  const socket = await connect();
  const time = expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
  const entry = (path: string, fields: object) => ({
    path,
    name: path.split('/').at(-1),
    mtime: time,
    ctime: time,
    birthtime: time,
    target: null,
    size: 0,
    ...fields,
  });
  const directory = entry('/wire', { type: 'directory', mode: 0o755 });
  const file = entry('/wire/file', { type: 'file', mode: 0o644 });
  const exchange: [{ op: string; [field: string]: unknown }, unknown][] = [
    [{ op: 'mkdir', path: '/wire' }, directory],
    [{ op: 'mkdir', path: '/wire' }, 'EEXIST'],
    [{ op: 'mkdir', path: '/wire/a/b/c' }, 'ENOENT'],
    [{ op: 'mkdir', path: '/wire/a/b', recursive: true }, { path: '/wire/a/b' }],
    [
      { op: 'write', path: '/wire/file', content: 'héllo' },
      { ...file, size: 6 },
    ],
    [{ op: 'write', path: '/wire/file', content: 'x', exclusive: true }, 'EEXIST'],
    [{ op: 'write', path: '/wire', content: 'x' }, 'EISDIR'],
    [{ op: 'write', path: '/wire/file/x', content: 'x' }, 'ENOTDIR'],
    [{ op: 'write', path: '/wire/p/q', content: 'x' }, 'ENOENT'],
    [{ op: 'write', path: '/wire/p/q', content: 'x', parents: true, mode: 0o600 }, { mode: 0o600 }],
    [
      { op: 'read', path: '/wire/file' },
      { content: 'héllo', encoding: 'utf8', size: 6 },
    ],
    [
      { op: 'read', path: '/wire/file', offset: 2, length: 2 },
      { content: 'qWw=', encoding: 'base64', size: 2 },
    ],
    [{ op: 'read', path: '/wire/file', offset: 2, length: 2, encoding: 'utf8' }, 'EINVAL'],
    [
      { op: 'read', path: '/wire/file', encoding: 'base64' },
      { content: 'aMOpbGxv', encoding: 'base64', size: 6 },
    ],
    [
      { op: 'read', path: '/wire/file', offset: 99 },
      { content: '', encoding: 'utf8', size: 0 },
    ],
    [{ op: 'read', path: '/wire' }, 'EISDIR'],
    [{ op: 'read', path: '/wire/nothing' }, 'ENOENT'],
    [{ op: 'append', path: '/wire/file', content: 'AP8=', encoding: 'base64' }, { size: 8 }],
    [{ op: 'append', path: '/wire/new', content: 'made' }, { size: 4 }],
    [{ op: 'pwrite', path: '/wire/new', offset: 6, content: '!' }, { size: 7 }],
    [
      { op: 'read', path: '/wire/new' },
      { content: 'made\0\0!', encoding: 'utf8', size: 7 },
    ],
    [{ op: 'pwrite', path: '/wire/nothing', offset: 0, content: 'x' }, 'ENOENT'],
    [{ op: 'truncate', path: '/wire/new', size: 2 }, { size: 2 }],
    [{ op: 'truncate', path: '/wire/new' }, { size: 0 }],
    [{ op: 'truncate', path: '/wire/new', size: 500 * 1024 * 1024 }, 'EFBIG'],
    [
      { op: 'symlink', path: '/wire/link', target: 'file' },
      entry('/wire/link', { type: 'symlink', mode: 0o777, target: 'file' }),
    ],
    [{ op: 'symlink', path: '/wire/link', target: 'file' }, 'EEXIST'],
    [{ op: 'readlink', path: '/wire/link' }, { target: 'file' }],
    [{ op: 'readlink', path: '/wire/file' }, 'EINVAL'],
    [
      { op: 'stat', path: '/wire/link' },
      { path: '/wire/file', type: 'file' },
    ],
    [
      { op: 'stat', path: '/wire/link', follow: false },
      { path: '/wire/link', type: 'symlink' },
    ],
    [{ op: 'symlink', path: '/wire/loop', target: 'loop' }, { target: 'loop' }],
    [{ op: 'stat', path: '/wire/loop' }, 'EINVAL'],
    [{ op: 'chmod', path: '/wire/file', mode: 0o400 }, { mode: 0o400 }],
    [
      { op: 'utimes', path: '/wire/file', mtime: '2001-02-03T04:05:06.789Z' },
      { mtime: '2001-02-03T04:05:06.789Z' },
    ],
    [
      { op: 'rename', path: '/wire/file', to: '/wire/new' },
      { path: '/wire/new', size: 8 },
    ],
    [{ op: 'rename', path: '/wire/file', to: '/wire/x' }, 'ENOENT'],
    [{ op: 'rename', path: '/wire', to: '/wire/a/wire' }, 'EINVAL'],
    [{ op: 'rename', path: '/wire/new', to: '/wire/a' }, 'EISDIR'],
    [{ op: 'rename', path: '/wire/a', to: '/wire/new' }, 'ENOTDIR'],
    [{ op: 'rename', path: '/wire/p', to: '/wire/a' }, 'ENOTEMPTY'],
    [
      {
        op: 'batch_write',
        files: [
          { path: '/wire/1', content: 'eins' },
          { path: '/wire/2', content: 'AA==', encoding: 'base64' },
        ],
      },
      {
        entries: [
          { path: '/wire/1', size: 4 },
          { path: '/wire/2', size: 1 },
        ],
      },
    ],
    [
      {
        op: 'batch_write',
        files: [
          { path: '/wire/3', content: '' },
          { path: '/wire/a', content: '' },
        ],
      },
      'EISDIR',
    ],
    [{ op: 'stat', path: '/wire/3' }, 'ENOENT'],
    [{ op: 'unlink', path: '/wire/a' }, 'EISDIR'],
    [{ op: 'unlink', path: '/wire/link' }, null],
    [{ op: 'rm', path: '/wire/a' }, 'ENOTEMPTY'],
    [{ op: 'rm', path: '/wire/a/b' }, null],
    [{ op: 'rm', path: '/wire/nothing' }, 'ENOENT'],
    [{ op: 'rm', path: '/wire/nothing', force: true }, null],
    [
      { op: 'readdir', path: '/wire', limit: 2 },
      { entries: [{ name: '1' }, { name: '2' }], next: '2' },
    ],
    [
      { op: 'readdir', path: '/wire', after: '2' },
      { entries: [{ name: 'a' }, { name: 'loop' }, { name: 'new' }, { name: 'p' }], next: null },
    ],
    [{ op: 'readdir', path: '/wire/new' }, 'ENOTDIR'],
    [{ op: 'rm', path: '/wire', recursive: true }, null],
    [{ op: 'rm', path: '/', recursive: true }, 'EINVAL'],
    [{ op: 'stat', path: '/wire/../x' }, 'EINVAL'],
    [{ op: 'stat', path: '/a\0b' }, 'EINVAL'],
    [{ op: 'stat', path: `/${'n'.repeat(256)}` }, 'EINVAL'],
    [{ op: 'stat', path: '/\ud800' }, 'EINVAL'],
    [{ op: 'stat', path: 'relative' }, 'EINVAL'],
  ];
  for (const [request, expected] of exchange) {
    const { id, ...reply } = await socket.ask(request);
    expect({ request, reply }).toMatchObject({
      request,
      reply:
        typeof expected === 'string'
          ? { ok: false, error: { code: expected, message: expect.stringMatching(/./) } }
          : { ok: true, data: expected },
    });
  }
});

describe('requests that make no sense', () => {
  test('EINVAL, and the connection goes on', async () => {
    const socket = await connect();
    const requests: Record<string, unknown>[] = [
      { op: 'nothing', path: '/' },
      { op: 'constructor', path: '/' },
      { op: '__proto__' },
      { op: 5 },
      {},
      { op: 'auth', username: `${database.id}.admin`, password: database.admin_password },
      { op: 'stat' },
      { op: 'stat', path: 5 },
      { op: 'stat', path: ['/'] },
      { op: 'stat', path: '/', follow: 'yes' },
      { op: 'write', path: '/x' },
      { op: 'write', path: '/x', content: 5 },
      { op: 'write', path: '/x', content: 'a', stream: true },
      { op: 'write', path: '/x', content: '*', encoding: 'base64' },
      { op: 'write', path: '/x', content: 'a', encoding: 'latin1' },
      { op: 'write', path: '/x', content: 'a', mode: 0o10000 },
      { op: 'write', path: '/x', content: 'a', mode: 1.5 },
      { op: 'pwrite', path: '/x', offset: -1, content: 'a' },
      { op: 'read', path: '/x', offset: 1e300 },
      { op: 'truncate', path: '/x', size: '5' },
      { op: 'rename', path: '/x' },
      { op: 'symlink', path: '/x', target: '' },
      { op: 'symlink', path: '/x', target: 'a'.repeat(5_000) },
      { op: 'symlink', path: '/x', target: 'a\0' },
      { op: 'utimes', path: '/', mtime: 'yesterday' },
      { op: 'utimes', path: '/', mtime: '5' },
      { op: 'utimes', path: '/', mtime: '+275760-09-13T00:00:00.000Z' },
      { op: 'utimes', path: '/', mtime: '2001-02-31T00:00:61Z' },
      { op: 'batch_write', files: [] },
      { op: 'batch_write', files: [{ path: '/x' }] },
      { op: 'unwatch', watch: 99 },
      { op: 'end', stream: 99, sha256: sha256(Buffer.alloc(0)) },
      { op: 'end', stream: 1, sha256: 'short' },
    ];
    for (const request of requests) {
      const reply = await socket.ask(request as { op: string });
      expect({ request, reply }).toMatchObject({ request, reply: failed('EINVAL') });
    }
    expect(await socket.ask({ op: 'stat', path: '/x' })).toMatchObject(failed('ENOENT'));
    expect(await socket.ask({ op: 'stat', path: '/', follow: null })).toMatchObject({ ok: true });
  });

  const frame = (stream: bigint, bytes = 'x') => {
    const header = Buffer.alloc(8);
    header.writeBigUInt64BE(stream);
    return Buffer.concat([header, Buffer.from(bytes)]);
  };
  test.each<[string, string | Buffer]>([
    ['no JSON', 'hello'],
    ['half a JSON', '{"id":1,'],
    ['not an object', '[1]'],
    ['null', 'null'],
    ['without id', '{"op":"stat","path":"/"}'],
    ['with an object as id', '{"id":{},"op":"stat","path":"/"}'],
    ['an empty frame', Buffer.alloc(0)],
    ['a frame without a whole header', Buffer.alloc(7)],
    ['a frame for stream 0', frame(0n)],
    ['a frame for a stream that never was', frame(1n)],
    ['a frame for a stream beyond all numbers', frame(2n ** 64n - 1n)],
  ])('%s: EPROTO, and the connection ends', async (_, data) => {
    const socket = await connect();
    socket.sendRaw(data);
    expect(await socket.next()).toMatchObject({ id: null, ...failed('EPROTO') });
    expect(await socket.closed).toMatchObject({ code: 4400 });
  });

  test('before authentication: content, too much of anything', async () => {
    const binary = await openFileSocket(url);
    binary.sendRaw(frame(1n));
    expect(await binary.next()).toMatchObject(failed('EPROTO'));
    expect(await binary.closed).toMatchObject({ code: 4400 });
    const large = await openFileSocket(url);
    large.send({ id: 1, op: 'auth', username: 'x'.repeat(100_000), password: '' });
    expect(await large.closed).toMatchObject({ code: 1006 });
  });

  test('a message that is too large: 1009', async () => {
    const socket = await connect();
    socket.sendRaw(Buffer.alloc(5 * 1024 * 1024));
    expect(await socket.closed).toMatchObject({ code: 1009 });
  });

  test('content for a download', async () => {
    const socket = await connect();
    await socket.upload({ op: 'write', path: '/down' }, randomBytes(3_000_000));
    const { data } = await socket.ask({ op: 'read', path: '/down', window: 65_536 });
    socket.frame(data.stream, Buffer.from('x'));
    expect(await socket.next((it) => it.ok === false)).toMatchObject(failed('EPROTO'));
    expect(await socket.closed).toMatchObject({ code: 4400 });
  });
});

describe('streams', () => {
  test('1,000,000 bytes and more come as a stream, less in the reply', async () => {
    const socket = await connect();
    for (const size of [999_999, 1_000_000]) {
      const content = randomBytes(size);
      expect(await socket.upload({ op: 'write', path: '/border' }, content)).toMatchObject({
        ok: true,
        data: { size },
      });
      const { data } = await socket.ask({ op: 'read', path: '/border' });
      if (size < 1_000_000) expect(Buffer.from(data.content, 'base64').equals(content)).toBe(true);
      else expect(data).toMatchObject({ stream: expect.any(Number), size, entry: { size } });
    }
  });

  test('several at once on one connection, frames of every size', async () => {
    const socket = await connect();
    const contents = [0, 1, 70_000, 1_500_000, 2_345_678].map((size) => randomBytes(size));
    const streams: number[] = [];
    for (const i of contents.keys())
      streams.push(
        (await socket.ask({ op: 'write', path: `/many${i}`, stream: true })).data.stream,
      );
    const sent = contents.map(() => 0);
    for (let step = 1; sent.some((count, i) => count < contents[i]!.length); step++)
      for (const [i, content] of contents.entries()) {
        const piece = content.subarray(sent[i]!, sent[i]! + ((step * 7_919) % 100_000));
        sent[i]! += piece.length;
        if (piece.length > 0) socket.frame(streams[i]!, piece);
      }
    for (const [i, content] of contents.entries()) {
      const end = { op: 'end', stream: streams[i]!, sha256: sha256(content) };
      expect(await socket.ask(end)).toMatchObject({ ok: true, data: { size: content.length } });
      expect((await socket.download({ path: `/many${i}` })).equals(content)).toBe(true);
    }
  });

  test('a wrong checksum, an abort, a second end: nothing changes', async () => {
    const socket = await connect();
    await socket.ask({ op: 'write', path: '/checked', content: 'before' });
    const before = await logicalBytes();
    const content = randomBytes(1_200_000);
    const start = async () =>
      (await socket.ask({ op: 'write', path: '/checked', stream: true })).data.stream as number;

    const wrong = await start();
    socket.frame(wrong, content);
    const end = { op: 'end', stream: wrong, sha256: sha256(Buffer.from('else')) };
    expect(await socket.ask(end)).toMatchObject(failed('EINVAL'));
    expect(await socket.ask({ ...end, sha256: sha256(content) })).toMatchObject({ ok: false });

    const aborted = await start();
    socket.frame(aborted, content);
    expect(await socket.ask({ op: 'abort', stream: aborted })).toMatchObject({ ok: true });
    expect(await socket.ask({ op: 'end', stream: aborted, sha256: sha256(content) })).toMatchObject(
      { ok: false },
    );
    // Its late frames are nobody's.
    socket.frame(aborted, content);

    const { data } = await socket.ask({ op: 'read', path: '/checked' });
    expect(data.content).toBe('before');
    expect(await logicalBytes()).toBe(before);
  });

  test('what cannot be is refused before content is sent; what grows too large, on the way', async () => {
    const socket = await connect();
    const start = (path: string) => socket.ask({ op: 'write', path, stream: true });
    expect(await start('/')).toMatchObject(failed('EISDIR'));
    expect(await start('/missing/file')).toMatchObject(failed('ENOENT'));
    await socket.ask({ op: 'write', path: '/hole', content: '' });
    const quota = 400 * 1024 * 1024;
    const room = quota - (await logicalBytes()) - 1_000_000;
    expect(await socket.ask({ op: 'truncate', path: '/hole', size: room })).toMatchObject({
      ok: true,
    });
    const { data } = await start('/large');
    socket.frame(data.stream, randomBytes(1_000_001));
    expect(await socket.next((it) => it.stream === data.stream && it.ok === false)).toMatchObject(
      failed('EFBIG'),
    );
    expect(
      await socket.ask({ op: 'end', stream: data.stream, sha256: sha256(Buffer.alloc(0)) }),
    ).toMatchObject(failed('EFBIG'));
    expect(await socket.ask({ op: 'stat', path: '/large' })).toMatchObject(failed('ENOENT'));
    await socket.ask({ op: 'unlink', path: '/hole' });
  });

  test('an upload that is cut off leaves nothing, on the disk neither', {
    timeout: 240_000,
  }, async () => {
    const before = await logicalBytes();
    const storage = async () =>
      (await account.sql(database.id, `select pg_database_size('postgres')::int`)).rows[0][0];
    const storageBefore = await storage();
    const socket = await connect();
    const { data } = await socket.ask({ op: 'write', path: '/cut', stream: true });
    const piece = randomBytes(1_000_000);
    for (let sent = 0; sent < interruptedBytes; sent += piece.length) {
      socket.frame(data.stream, piece);
      while (socket.socket.bufferedAmount > 4_000_000)
        await new Promise((resolve) => setImmediate(resolve));
    }
    await socket.next((it) => it.received! >= interruptedBytes - 2_000_000);
    socket.terminate();
    const other = await connect();
    expect(await other.ask({ op: 'stat', path: '/cut' })).toMatchObject(failed('ENOENT'));
    expect(await logicalBytes()).toBe(before);
    await expect
      .poll(storage, { timeout: 20_000, interval: 500 })
      .toBeLessThan(storageBefore + interruptedBytes / 4);
  });

  test('a window holds a download back', async () => {
    const socket = await connect();
    const content = randomBytes(3_000_000);
    await socket.upload({ op: 'write', path: '/windowed' }, content);
    const { data } = await socket.ask({ op: 'read', path: '/windowed', window: 262_144 });
    const pieces: Buffer[] = [];
    let received = 0;
    for (;;) {
      const message = await socket.next((it) => it.stream === data.stream);
      if (!message.bytes) {
        expect(message.data).toEqual({ size: content.length, sha256: sha256(content) });
        break;
      }
      pieces.push(message.bytes);
      received += message.bytes.length;
      if (pieces.length === 1) {
        await delay(100);
        expect(socket.waiting).toBe(0);
      }
      socket.send({ op: 'ack', stream: data.stream, received });
    }
    expect(Buffer.concat(pieces).equals(content)).toBe(true);
  });

  test('a download can be given up', async () => {
    const socket = await connect();
    await socket.upload({ op: 'write', path: '/given-up' }, randomBytes(5_000_000));
    const { data } = await socket.ask({ op: 'read', path: '/given-up', window: 65_536 });
    expect(await socket.ask({ op: 'abort', stream: data.stream })).toMatchObject({ ok: true });
    expect(await socket.ask({ op: 'stat', path: '/given-up' })).toMatchObject({ ok: true });
  });
});

test('two writers of one path: it is one of the two, whole', async () => {
  const [one, two] = await Promise.all([connect(), connect()]);
  for (let round = 0; round < 5; round++) {
    const contents = [randomBytes(1_100_000), randomBytes(1_300_000)];
    const outcomes = await Promise.all([
      one.upload({ op: 'write', path: '/both' }, contents[0]!),
      two.upload({ op: 'write', path: '/both' }, contents[1]!),
    ]);
    expect(outcomes).toMatchObject([{ ok: true }, { ok: true }]);
    const final = await one.download({ path: '/both' });
    expect(contents.some((content) => content.equals(final))).toBe(true);
  }
});

test('watching: changes over WebSocket and SQL, until unwatch', async () => {
  const [watcher, writer] = await Promise.all([connect(), connect()]);
  await writer.ask({ op: 'mkdir', path: '/seen' });
  expect(await watcher.ask({ op: 'watch', path: '/missing' })).toMatchObject(failed('ENOENT'));
  watcher.send({ id: 'w', op: 'watch', path: '/seen' });
  expect(await watcher.next()).toEqual({ id: 'w', ok: true, data: { watch: 'w' } });
  await writer.ask({ op: 'write', path: '/seen/a', content: 'x' });
  expect(await watcher.next()).toEqual({ id: 'w', event: { type: 'created', path: '/seen/a' } });
  await account.sql(database.id, `select fs.append('/seen/a', 'y')`);
  expect(await watcher.next()).toEqual({ id: 'w', event: { type: 'modified', path: '/seen/a' } });
  await writer.ask({ op: 'rename', path: '/seen/a', to: '/seen/b' });
  expect(await watcher.next()).toEqual({
    id: 'w',
    event: { type: 'renamed', path: '/seen/b', from: '/seen/a' },
  });
  expect(await watcher.ask({ op: 'unwatch', watch: 'w' })).toMatchObject({ ok: true });
  await writer.ask({ op: 'rm', path: '/seen', recursive: true });
  expect(await watcher.ask({ op: 'stat', path: '/' })).toMatchObject({ ok: true });
});

describe('limits', () => {
  test('requests in flight', async () => {
    const socket = await connect();
    for (let id = 1000; id < 1400; id++) socket.send({ id, op: 'stat', path: '/' });
    const outcomes: string[] = [];
    while (outcomes.length < 400) {
      const { ok, error } = await socket.next((it) => Number(it.id) >= 1000);
      outcomes.push(ok ? 'ok' : error!.code);
    }
    expect(outcomes.filter((it) => it === 'ok').length).toBeGreaterThanOrEqual(128);
    expect(new Set(outcomes)).toEqual(new Set(['ok', 'EIO']));
    expect(await socket.ask({ op: 'stat', path: '/' })).toMatchObject({ ok: true });
  });

  test('streams on a connection', async () => {
    const socket = await connect();
    const replies = await Promise.all(
      Array.from({ length: 17 }, (_, i) => {
        const id = `s${i}`;
        socket.send({ id, op: 'write', path: `/s${i}`, stream: true });
        return id;
      }),
    );
    expect(await socket.next((it) => it.ok === false)).toMatchObject({
      id: replies.at(-1),
      ...failed('EIO'),
    });
    socket.terminate();
  });

  test('connections to one database', async () => {
    const crowded = await account.database();
    const open = await Promise.all(
      Array.from({ length: 24 }, () => connect(crowded.admin_password, 'admin', crowded.id)),
    );
    const refused = await connect(crowded.admin_password, 'admin', crowded.id).catch((it) => it);
    expect(refused).toMatchObject({ code: 'EIO' });
    expect(await refused.socket.closed).toMatchObject({ code: 4429 });
    open[0]!.close();
    await open[0]!.closed;
    await expect
      .poll(() =>
        connect(crowded.admin_password, 'admin', crowded.id).then(
          () => true,
          () => false,
        ),
      )
      .toBe(true);
    for (const socket of open) socket.terminate();
  });
});

test('neither an open connection nor a watch keeps a database awake; a request wakes it', async () => {
  const sleepy = await startService({ flags: ['--idle-seconds', '1'] });
  try {
    const owner = await sleepy.api.register();
    const { id, admin_password: password } = await owner.database();
    const socket = await openFileSocket(`${sleepy.baseUrl.replace('http', 'ws')}/fs/${id}`);
    await socket.ask({ op: 'auth', username: `${id}.admin`, password });
    await socket.ask({ op: 'write', path: '/file', content: 'x' });
    await socket.ask({ op: 'watch', path: '/' });
    const awake = async () =>
      /^coppice_databases_awake (\d+)$/m.exec(
        await (await fetch(`${sleepy.baseUrl}/metrics`)).text(),
      )?.[1];
    await expect.poll(awake, { timeout: 15_000, interval: 200 }).toBe('0');
    await owner.sql(id, `select fs.write_text('/file', 'y')`);
    const { event } = await socket.next((it) => it.event !== undefined);
    expect(['modified', 'rescan']).toContain(event!.type);
    expect((await socket.ask({ op: 'read', path: '/file' })).data.content).toBe('y');
    await expect.poll(awake, { timeout: 15_000, interval: 200 }).toBe('0');
    expect((await socket.ask({ op: 'read', path: '/file' })).data.content).toBe('y');
    socket.terminate();
  } finally {
    await sleepy.stop();
  }
}, 90_000);

test('a branch shows the files and rows of its instant', async () => {
  const socket = await connect();
  await account.sql(database.id, 'create table facts (n int)');
  const both = (n: number) =>
    account.sql(
      database.id,
      `begin; insert into facts values (${n}); select fs.write_text('/fact', '${n}'); commit`,
    );
  await both(1);
  await delay(20);
  const instant = new Date();
  await delay(20);
  await both(2);
  await socket.ask({ op: 'write', path: '/later', content: '' });
  const { status, body } = await account.post(`/customer/databases/${database.id}/branch`, {
    name: `past-${database.name}`,
    snapshot_at: instant.toISOString(),
  });
  expect(status).toBe(201);
  const { body: there } = await account.post(`/customer/databases/${body.id}/fs-connect`);
  const past = await connect(there.admin_password, 'admin', body.id);
  expect((await past.ask({ op: 'read', path: '/fact' })).data.content).toBe('1');
  expect(await past.ask({ op: 'stat', path: '/later' })).toMatchObject(failed('ENOENT'));
  expect((await account.sql(body.id, 'select n from facts')).rows).toEqual([[1]]);
});

test('the SDK: transfers with progress, text, watching, errors', async () => {
  const files = await connectFiles({
    url,
    username: `${database.id}.admin`,
    password: database.admin_password,
  });
  const stop = new AbortController();
  const events: string[] = [];
  const { promise: ready, resolve } = Promise.withResolvers<void>();
  await files.mkdir('/sdk', { recursive: true });
  const watching = (async () => {
    for await (const event of files.watch('/sdk', { ready: resolve, signal: stop.signal })) {
      events.push(`${event.type} ${event.path}`);
      if (event.type === 'deleted') stop.abort();
    }
  })();
  await ready;

  const content = new Uint8Array(randomBytes(5_000_000));
  const progress: number[] = [];
  const entry = await files.write('/sdk/blob', new Blob([content]), {
    onProgress: (sent, total) => {
      expect(total).toBe(content.length);
      progress.push(sent);
    },
  });
  expect(entry).toMatchObject({ path: '/sdk/blob', size: content.length });
  expect(progress.at(-1)).toBe(content.length);
  expect(progress.length).toBeGreaterThan(5);
  expect(progress).toEqual([...progress].sort((a, b) => a - b));
  expect(Buffer.from(await files.read('/sdk/blob')).equals(content)).toBe(true);
  const part = await files.read('/sdk/blob', { offset: 1_000_000, length: 2_000_000 });
  expect(Buffer.from(part).equals(content.subarray(1_000_000, 3_000_000))).toBe(true);

  async function* pieces() {
    for (let i = 0; i < 3; i++) yield content.subarray(0, 700_000);
  }
  expect((await files.write('/sdk/pieces', pieces())).size).toBe(2_100_000);
  expect((await files.append('/sdk/pieces', 'end')).size).toBe(2_100_003);

  await files.write('/sdk/text', 'grüße');
  expect(await files.readText('/sdk/text')).toBe('grüße');
  expect((await files.readdir('/sdk')).map((it) => it.name)).toEqual(['blob', 'pieces', 'text']);
  await expect(files.read('/sdk/nothing')).rejects.toMatchObject({
    name: 'FilesError',
    code: 'ENOENT',
  });

  const cancelled = new AbortController();
  async function* endless() {
    for (;;) yield content.subarray(0, 300_000);
  }
  await expect(
    files.write('/sdk/never', endless(), {
      signal: cancelled.signal,
      onProgress: () => cancelled.abort(),
    }),
  ).rejects.toThrow();
  await expect(files.stat('/sdk/never')).rejects.toMatchObject({ code: 'ENOENT' });

  const { stream } = await files.download('/sdk/blob');
  const reader = stream.getReader();
  await reader.read();
  await reader.cancel();
  await files.rm('/sdk', { recursive: true });
  await watching;
  expect(events).toEqual([
    'created /sdk/blob',
    'created /sdk/pieces',
    'modified /sdk/pieces',
    'created /sdk/text',
    'deleted /sdk',
  ]);
  files.close();
  expect(await files.closed).toMatchObject({ code: 1000 });
});
