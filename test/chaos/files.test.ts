// kill -9 in the middle of uploads: what was acknowledged is there, whole; of the rest there is nothing.
import { randomBytes } from 'node:crypto';
import { afterEach, expect, test } from 'vitest';
import { sizeOf } from '../../scripts/soak-sizes.ts';
import { type FileSocket, openFileSocket, sha256 } from '../support/file-socket.ts';
import { type RunningService, startService } from '../support/service.ts';

const crashes = sizeOf('file-kills');

let service: RunningService | undefined;
afterEach(async () => {
  await service?.stop();
  service = undefined;
});

test('the service dies while files are written', { timeout: crashes * 90_000 }, async () => {
  service = await startService();
  const account = await service.api.register();
  const database = await account.database();
  const connect = async (): Promise<FileSocket> => {
    const socket = await openFileSocket(
      `${service!.baseUrl.replace('http', 'ws')}/fs/${database.id}`,
    );
    const username = `${database.id}.admin`;
    const reply = await socket.ask({ op: 'auth', username, password: database.admin_password });
    expect(reply.error).toBeUndefined();
    return socket;
  };

  /** Path → the contents it may have: the last acknowledged, or one whose answer never came. */
  const possible = new Map<string, Buffer[]>();
  for (let crash = 0; crash < crashes; crash++) {
    let acknowledged = 0;
    const { promise: enough, resolve } = Promise.withResolvers<void>();
    const writers = Array.from({ length: 3 }, async (_, writer) => {
      const socket = await connect();
      for (let i = 0; ; i++) {
        const path = `/w${writer}-${i % 4}`;
        const content = randomBytes(100_000 + Math.floor(Math.random() * 1_000_000));
        const before = possible.get(path) ?? [];
        possible.set(path, [...before.slice(-1), content]);
        const outcome = await socket.upload({ op: 'write', path }, content);
        expect(outcome.error).toBeUndefined();
        possible.set(path, [content]);
        if (++acknowledged === 6) resolve();
      }
    });
    const ends = Promise.allSettled(writers);
    await enough;
    await service.kill();
    for (const writer of await ends) expect(writer.status).toBe('rejected');
    service = await service.restart();

    const socket = await connect();
    for (const [path, contents] of possible) {
      const found = await socket.download({ path }).catch((error: Error) => error.message);
      if (typeof found === 'string') {
        // Never acknowledged: only then may it be missing.
        expect({ path, found, known: contents.length }).toMatchObject({ found: 'ENOENT' });
        possible.delete(path);
        continue;
      }
      const which = contents.findIndex((content) => sha256(content) === sha256(found));
      expect({ path, which: which >= 0 }).toEqual({ path, which: true });
      possible.set(path, [contents[which]!]);
    }
    const query = `select fs.logical_bytes() = (select coalesce(sum(size), 0) from fs.files)`;
    const { body } = await service.api.call('POST', `/customer/databases/${database.id}/sql`, {
      token: account.token,
      body: { query },
    });
    expect(body.rows).toEqual([[true]]);
    socket.terminate();
  }
});
