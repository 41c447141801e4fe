import { createHash, randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { connectFiles, type FilesClient } from '../../../packages/sdk/src/index.ts';
import { startService } from '../../../test/support/service.ts';
import { copyIn, copyOut } from '../copy.ts';
import {
  type BenchCase,
  type BenchContext,
  memoryMb,
  type Row,
  summarize,
  throughput,
  timed,
} from '../harness.ts';

const mb = 1024 * 1024;

export const files: BenchCase = {
  name: 'files',
  about:
    'Files over WebSocket against the same bytes through COPY and large objects on the socket of the same database; 1 KB reads with 16 clients; memory of the service with 8 streams.',
  async run(context) {
    const service = await startService();
    try {
      const account = await service.api.register();
      const database = await account.database();
      const { body } = await account.post(`/customer/databases/${database.id}/fs-connect`);
      const connect = () =>
        connectFiles({
          url: body.fs_websocket_url,
          username: `${database.id}.admin`,
          password: database.admin_password,
        });
      const client = await connect();
      await client.mkdir('/bench');
      const direct = new pg.Client({
        host: (await account.sql(database.id, 'show unix_socket_directories')).rows[0][0],
        user: 'admin',
        database: 'postgres',
      });
      await direct.connect();
      await delay(1_000);
      const idle = memoryMb(service.pid);
      const rows = [
        ...(await memory(context, connect, service.pid, idle)),
        ...(await transfers(context, client, direct)),
        ...(await smallReads(context, connect, direct)),
      ];
      await direct.end();
      client.close();
      return rows;
    } finally {
      await service.stop();
    }
  },
};

async function transfers(
  context: BenchContext,
  client: FilesClient,
  direct: pg.Client,
): Promise<Row[]> {
  const content = randomBytes((context.quick ? 32 : 256) * mb);
  const sha256 = createHash('sha256').update(content).digest('hex');
  const rounds = context.quick ? 1 : 3;
  const durations: Record<string, number[]> = {};
  const measure = async (name: string, work: () => Promise<unknown>) => {
    context.progress(name);
    durations[name] = [...(durations[name] ?? []), await timed(work)];
  };

  for (let round = 0; round < rounds; round++) {
    await measure('files up', () => client.write('/bench/large', content));
    const check = createHash('sha256');
    await measure('files down', async () => {
      const { stream } = await client.download('/bench/large');
      for await (const piece of stream) check.update(piece);
    });
    if (check.digest('hex') !== sha256) throw new Error('the content changed on its way');
    await client.unlink('/bench/large');

    await direct.query('create table copied (n integer, data bytea)');
    await measure('COPY up', () => copyIn(direct, 'copied', content, 65_536));
    let received = 0;
    await measure('COPY down', () =>
      copyOut(direct, 'select data from copied order by n', (bytes) => {
        received += bytes.length;
      }),
    );
    if (received < content.length) throw new Error('COPY gave less than it got');
    await direct.query('drop table copied');

    let oid = 0;
    await measure('large object up', async () => {
      oid = await writeLargeObject(direct, content);
    });
    await measure('large object down', () => readLargeObject(direct, oid, content.length));
    await direct.query('select lo_unlink($1)', [oid]);
    // Vacuums and checkpoints of one round do not belong to the next.
    await direct.query('checkpoint');
    await delay(3_000);
  }

  const perSecond = (name: string) =>
    content.length / mb / (summarize(durations[name]!).p50 / 1000);
  return ['up', 'down'].flatMap((way): Row[] => {
    const share = (peer: string) => perSecond(`files ${way}`) / perSecond(`${peer} ${way}`);
    const note = (name: string) => `${perSecond(`${name} ${way}`).toFixed(0)} MB/s`;
    return [
      { what: `COPY ${way}`, ...summarize(durations[`COPY ${way}`]!), note: note('COPY') },
      {
        what: `large object ${way}`,
        ...summarize(durations[`large object ${way}`]!),
        note: note('large object'),
      },
      {
        what: `files ${way}`,
        ...summarize(durations[`files ${way}`]!),
        note: `${note('files')}, ${share('large object').toFixed(2)} of large objects`,
        target: { of: 'share of COPY', value: share('COPY'), atLeast: 0.5 },
      },
    ];
  });
}

const pieceBytes = 256 * 1024;

async function writeLargeObject(client: pg.Client, content: Buffer): Promise<number> {
  await client.query('begin');
  const { rows } = await client.query<{ oid: number; fd: number }>(
    'select oid, lo_open(oid, 131072) as fd from (select lo_create(0) as oid) made',
  );
  for (let at = 0; at < content.length; at += pieceBytes)
    await client.query({
      name: 'lowrite',
      text: 'select lowrite($1, $2)',
      values: [rows[0]!.fd, content.subarray(at, at + pieceBytes)],
    });
  await client.query('commit');
  return rows[0]!.oid;
}

async function readLargeObject(client: pg.Client, oid: number, size: number): Promise<void> {
  await client.query('begin');
  const { rows } = await client.query<{ fd: number }>('select lo_open($1, 262144) as fd', [oid]);
  let received = 0;
  for (let at = 0; at < size; at += pieceBytes)
    await copyOut(client, `select loread(${rows[0]!.fd}, ${pieceBytes})`, (bytes) => {
      received += bytes.length;
    });
  await client.query('commit');
  if (received < size) throw new Error('the large object gave less than it got');
}

async function smallReads(
  context: BenchContext,
  connect: () => Promise<FilesClient>,
  direct: pg.Client,
): Promise<Row[]> {
  const clients = await Promise.all(Array.from({ length: 16 }, connect));
  await clients[0]!.write('/bench/small', randomBytes(1024));
  await direct.query('create table small (id integer primary key, data bytea)');
  await direct.query('insert into small values (1, $1)', [randomBytes(1024)]);
  const { host, port } = direct;
  const directs = await Promise.all(
    Array.from({ length: 16 }, async () => {
      const each = new pg.Client({ host, port, user: 'admin', database: 'postgres' });
      await each.connect();
      return each;
    }),
  );
  const select = { name: 'small', text: 'select data from small where id = $1', values: [1] };
  const result = await throughput(
    {
      ours: (client) => clients[client]!.read('/bench/small'),
      theirs: (client) => directs[client]!.query(select),
    },
    { clients: 16, context },
  );
  for (const client of clients) client.close();
  await Promise.all(directs.map((each) => each.end()));
  return [
    {
      what: '1 KB row with pg on the socket, 16 clients',
      ...result.theirs.timing,
      perSecond: result.theirs.perSecond,
    },
    {
      what: '1 KB file, 16 clients',
      ...result.ours.timing,
      perSecond: result.ours.perSecond,
      note: `${(result.ours.perSecond / result.theirs.perSecond).toFixed(2)} of a row`,
    },
  ];
}

/** Uploads, then downloads, 8 at once; the service's highest memory above what it had before. */
async function memory(
  context: BenchContext,
  connect: () => Promise<FilesClient>,
  pid: number,
  idle: number,
): Promise<Row[]> {
  const size = (context.quick ? 32 : 256) * mb;
  const piece = randomBytes(mb);
  async function* content(): AsyncGenerator<Uint8Array> {
    for (let sent = 0; sent < size; sent += piece.length) yield piece;
  }
  const clients = await Promise.all(Array.from({ length: 8 }, connect));
  let peak = idle;
  const sampler = setInterval(() => {
    peak = Math.max(peak, memoryMb(pid));
  }, 50);
  const duration = await timed(async () => {
    context.progress('8 uploads');
    await Promise.all(clients.map((client, i) => client.write(`/bench/memory${i}`, content())));
    context.progress('8 downloads');
    await Promise.all(
      clients.map(async (client, i) => {
        const { stream } = await client.download(`/bench/memory${i}`);
        let received = 0;
        for await (const bytes of stream) received += bytes.length;
        if (received !== size) throw new Error('a download came short');
      }),
    );
  });
  clearInterval(sampler);
  await clients[0]!.rm('/bench', { recursive: true });
  await clients[0]!.mkdir('/bench');
  for (const client of clients) client.close();
  return [
    {
      what: `8 streams of ${size / mb} MB up, then down`,
      memory: peak,
      note: `${idle.toFixed(0)} MB before, ${((16 * size) / mb / (duration / 1000)).toFixed(0)} MB/s in all`,
      target: { of: 'MB above idle', value: peak - idle, atMost: 150 },
    },
  ];
}
