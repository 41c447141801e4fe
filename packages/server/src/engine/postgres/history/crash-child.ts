// The process that crash.test.ts kills: writes, takes bases and prunes as fast as it can, and says
// after each round what it is sure of.
import { nowMicros, openTestEngine } from './open-test-engine.ts';

const [dataDir, id] = process.argv.slice(2);
const test = await openTestEngine({ dataDir: dataDir!, policy: { retentionMs: 5_000 } });
const client = await test.connect(id!);
const { rows } = await client.query<{ last: number | null }>('select max(i) as last from t');
for (let i = (rows[0]!.last ?? 0) + 1; ; i++) {
  await client.query('insert into t values ($1)', [i]);
  await client.query(`select pg_logical_emit_message(true, 'filler', repeat('x', 2 << 20))`);
  process.send!({ written: i, atMicros: String(await nowMicros(client)) });
  await test.history.upkeep.renew(id!);
}
