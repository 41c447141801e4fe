import { EventEmitter, once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { createLogger } from '../../kernel/logger.ts';
import { type Metastore, openMetastore } from '../metastore/metastore.ts';
import { type ControlInstance, startControlInstance } from '../postgres/control-instance.ts';
import { openPostgresHost, type PostgresHost } from '../postgres/postgres-host.ts';
import { addJob, createJobs, type JobHandler } from './jobs.ts';

const root = resolve(fileURLToPath(import.meta.url), '../../../../../..');
const logger = createLogger('silent');
const home = 'here';

let dataDir: string;
let host: PostgresHost;
let control: ControlInstance;
let metastore: Metastore;

beforeAll(async () => {
  dataDir = await mkdtemp(join(tmpdir(), 'coppice-jobs-'));
  host = await openPostgresHost({
    dataDir,
    cacheDir: join(root, 'node_modules/.cache/coppice'),
    logger,
  });
  control = await startControlInstance({ host, logger });
  metastore = await openMetastore({
    connection: control.connection,
    schemaDirectory: join(root, 'packages/server/schema/control'),
    logger,
  });
});
afterAll(async () => {
  await metastore.close();
  await control.stop();
  await host.close();
  await rm(dataDir, { recursive: true, force: true });
});
beforeEach(async () => {
  await metastore.query('delete from jobs');
});

/** Emits `run` and `given up` with the subject. */
function recorder(run: JobHandler['run'] = async () => {}) {
  const events = new EventEmitter();
  const handler: JobHandler = {
    async run(subject, signal) {
      events.emit('run', subject);
      await run(subject, signal);
    },
    async giveUp(subject, reason) {
      events.emit('given up', subject, reason);
    },
  };
  return { events, handler };
}

const start = (handler: JobHandler, concurrency = 2, retryAfterMs = 20) => {
  const handlers = { kind: handler };
  const jobs = createJobs({ metastore, home, handlers, concurrency, retryAfterMs, logger });
  jobs.start();
  return jobs;
};
const add = (subject: string, to = home) =>
  metastore.transaction((tx) => addJob(tx, { home: to, kind: 'kind', subject }));
const left = async () => {
  const { rows } = await metastore.query<{ subject: string; attempts: number }>(
    'select subject, attempts from jobs order by key',
  );
  return rows;
};

it('runs what is added and forgets it', async () => {
  const { events, handler } = recorder();
  const jobs = start(handler);
  const ran = once(events, 'run');
  await add('one');
  expect(await ran).toEqual(['one']);
  await jobs.close();
  expect(await left()).toEqual([]);
  expect(jobs.stats()).toMatchObject({ running: 0, done: 1, givenUp: 0 });
});

it('does not see a job whose transaction was rolled back, nor one of another process', async () => {
  const subjects: string[] = [];
  const { events, handler } = recorder(async (subject) => void subjects.push(subject));
  const jobs = start(handler);
  await metastore
    .transaction(async (tx) => {
      await addJob(tx, { home, kind: 'kind', subject: 'never' });
      throw new Error('rolled back');
    })
    .catch(() => {});
  await add('elsewhere', 'there');
  const ran = once(events, 'run');
  await add('mine');
  await ran;
  await jobs.close();
  expect(subjects).toEqual(['mine']);
});

it('takes up what an earlier run left', async () => {
  await add('left over');
  await metastore.query('update jobs set attempts = 1');
  const { events, handler } = recorder();
  const ran = once(events, 'run');
  const jobs = start(handler);
  expect(await ran).toEqual(['left over']);
  await jobs.close();
  expect(await left()).toEqual([]);
});

it('never runs more at once than it may', async () => {
  let running = 0;
  let most = 0;
  let done = 0;
  const over = new EventEmitter();
  const { handler } = recorder(async () => {
    most = Math.max(most, ++running);
    await new Promise((resolve) => setTimeout(resolve, 10));
    running--;
    if (++done === 12) over.emit('over');
  });
  const finished = once(over, 'over');
  for (let i = 0; i < 12; i++) await add(`job ${i}`);
  const jobs = start(handler, 3);
  await finished;
  await jobs.close();
  expect(most).toBe(3);
});

it('tries again what throws, and gives it up in the end', async () => {
  let attempts = 0;
  const { events, handler } = recorder(async () => {
    attempts++;
    throw new Error('no luck');
  });
  const givenUp = once(events, 'given up');
  const jobs = start(handler);
  await add('hopeless');
  expect((await givenUp)[0]).toBe('hopeless');
  await jobs.close();
  expect(attempts).toBe(3);
  expect(await left()).toEqual([]);
  expect(jobs.stats()).toMatchObject({ failedAttempts: 3, givenUp: 1 });
});

it('gives up what took the process down too often', async () => {
  await add('deadly');
  await metastore.query('update jobs set attempts = 3');
  const { events, handler } = recorder();
  const givenUp = once(events, 'given up');
  const jobs = start(handler);
  expect((await givenUp)[0]).toBe('deadly');
  await jobs.close();
});

it('cuts off what runs when it closes, and leaves it to the next start as if never begun', async () => {
  const { events, handler } = recorder(
    (_, signal) =>
      new Promise((_resolve, reject) => {
        signal.addEventListener('abort', () => reject(signal.reason));
      }),
  );
  const jobs = start(handler);
  const ran = once(events, 'run');
  await add('long');
  await ran;
  await jobs.close();
  expect(await left()).toEqual([{ subject: 'long', attempts: 0 }]);
});
