// For tests: a fleet in a process of its own, which a test may kill or run as another user.
// Arguments: data directory, cache directory, number of databases to make and keep awake. It writes
// one line of JSON when all answer, and ends when standard input does.
import { openTestFleet } from './open-test-fleet.ts';

const [dataDir, cacheDir, count] = process.argv.slice(2);
const running = await openTestFleet({ dataDir: dataDir!, cacheDir: cacheDir! });
const databases = [];
for (let i = 0; i < Number(count); i++) {
  const id = await running.create();
  await running.query(id, `create table t as select ${i} as a`);
  databases.push({ id, pid: await running.postmasterPid(id), uid: process.getuid?.() });
}
process.stdout.write(`${JSON.stringify(databases)}\n`);
process.stdin.resume().on('end', async () => {
  await running.close({ keepData: true });
});
