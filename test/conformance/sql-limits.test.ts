// How long a statement may take over HTTP, and how large its result may be.
import { expect, test } from 'vitest';
import { startService } from '../support/service.ts';

test('limits of time and size are settings, and hold whatever a statement tries', async () => {
  const strict = await startService({ flags: ['--sql-seconds', '1', '--sql-result-mb', '1'] });
  try {
    const owner = await strict.api.register();
    const own = await owner.database();
    const ask = (query: string) => owner.post(`/customer/databases/${own.id}/sql`, { query });
    for (const query of [
      'select pg_sleep(30)',
      'set statement_timeout = 0; select pg_sleep(30)',
      'begin; select pg_sleep(30); commit',
      'do $$ begin loop perform 1; end loop; end $$',
      'do $$ begin perform pg_sleep(30); exception when query_canceled then perform pg_sleep(30); end $$',
    ]) {
      const { status, body } = await ask(query);
      expect({ query, status, message: body.message }).toEqual({
        query,
        status: 422,
        message: expect.stringMatching(/after 1 s, the limit over HTTP/),
      });
    }
    expect((await ask('select pg_sleep(0.7)')).status).toBe(200);
    const large = await ask("select repeat('x', 2 * 1024 * 1024)");
    expect([large.status, large.body.message]).toEqual([422, expect.stringMatching(/1 MiB/)]);
    expect((await ask("select length(repeat('x', 2 * 1024 * 1024))")).body.rows).toEqual([
      [2 * 1024 * 1024],
    ]);
  } finally {
    await strict.stop();
  }
});
