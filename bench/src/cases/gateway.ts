// The Postgres port against PgBouncer (session mode) and no proxy at all, on one instance.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, existsSync, globSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { startService } from '../../../test/support/service.ts';
import { alternate, type BenchCase, type BenchContext, cpuMs, type Row } from '../harness.ts';
import { meteringMicros, recordingRow } from '../recording-cost.ts';

interface Subject {
  /** Where and as whom pgbench and node-postgres connect. */
  host: string;
  port: number;
  user: string;
  password?: string;
  /** The proxy's process. */
  pid?: number;
}

export const gateway: BenchCase = {
  name: 'gateway',
  about:
    "`pgbench -S` and connecting, unencrypted: straight to the instance's socket, through PgBouncer (session mode), through the gateway. Processor time is the proxy's own, a transaction.",
  async run(context) {
    ensurePackages();
    const service = await startService({ flags: ['--instance-connections', '150'] });
    const database = await (await service.api.register()).database();
    const scratch = mkdtempSync(join(tmpdir(), 'coppice-bench-gateway-'));
    const ours: Subject = {
      ...service.gateway,
      user: `${database.id}.admin`,
      password: database.admin_password,
      pid: service.pid,
    };
    // Held open, so that the instance stays awake.
    const holder = new pg.Client({ ...ours, database: 'postgres' });
    await holder.connect();
    const { rows } = await holder.query(
      `select current_setting('unix_socket_directories') as host, current_setting('port')::int as port`,
    );
    const direct: Subject = { ...rows[0], user: 'admin' };
    const bouncer = await startPgBouncer(direct, scratch);
    try {
      pgbench(['-i', '-q', '-s', '10'], direct);
      const subjects = { direct, PgBouncer: bouncer.subject, Coppice: ours };
      const few = await throughputRows(subjects, 8, context);
      const most = few.find(({ target }) => target)?.perSecond ?? 0;
      return [
        ...few,
        recordingRow('… following it for observability', meteringMicros(), most),
        ...(await throughputRows(subjects, 32, context)),
        ...(await connectRows(subjects, context)),
      ];
    } finally {
      await bouncer.stop();
      await holder.end();
      await service.stop();
      rmSync(scratch, { recursive: true, force: true });
    }
  },
};

type Name = 'direct' | 'PgBouncer' | 'Coppice';

/** Short runs that take turns; the median of each. */
async function throughputRows(
  subjects: Record<Name, Subject>,
  clients: number,
  { quick, progress }: BenchContext,
): Promise<Row[]> {
  const names = Object.keys(subjects) as Name[];
  const [rounds, seconds] = quick ? [1, 1] : [5, 5];
  const runs: Record<Name, { perSecond: number; cpuMicros: number }[]> = {
    direct: [],
    PgBouncer: [],
    Coppice: [],
  };
  for (let round = 0; round < rounds; round++)
    for (const name of round % 2 === 0 ? names : names.toReversed()) {
      progress(`${clients} clients, ${name}, round ${round + 1}/${rounds}`);
      const { pid } = subjects[name];
      const before = pid === undefined ? 0 : cpuMs(pid);
      const output = pgbench(
        ['-S', '-n', '-c', String(clients), '-j', '2', '-T', String(seconds)],
        subjects[name],
      );
      const used = pid === undefined ? 0 : cpuMs(pid) - before;
      const count = Number(/actually processed: (\d+)/.exec(output)![1]);
      runs[name].push({
        perSecond: Number(/tps = ([\d.]+)/.exec(output)![1]),
        cpuMicros: (used / count) * 1000,
      });
    }
  const of = (name: Name, what: 'perSecond' | 'cpuMicros') =>
    median(runs[name].map((r) => r[what]));
  return names.map((name) => ({
    what: `${clients} clients, ${name}`,
    perSecond: of(name, 'perSecond'),
    ...(name === 'direct' ? {} : { note: `${of(name, 'cpuMicros').toFixed(1)} µs of processor` }),
    ...(name === 'Coppice'
      ? {
          target: {
            of: 'share of PgBouncer',
            value: of('Coppice', 'perSecond') / of('PgBouncer', 'perSecond'),
            atLeast: 0.85,
          },
        }
      : {}),
  }));
}

async function connectRows(subjects: Record<Name, Subject>, context: BenchContext): Promise<Row[]> {
  const connect = (subject: Subject) => async () => {
    const { host, port, user, password } = subject;
    const client = new pg.Client({ host, port, user, password, database: 'postgres' });
    await client.connect();
    // Its end is not part of connecting.
    client.end().catch(() => {});
  };
  const timings = await alternate(
    {
      direct: connect(subjects.direct),
      PgBouncer: connect(subjects.PgBouncer),
      Coppice: connect(subjects.Coppice),
    },
    { rounds: context.quick ? 20 : 300, warmup: context.quick ? 20 : 150, context },
  );
  return (Object.keys(timings) as Name[]).map((name) => ({
    what: `connect, ${name}`,
    p50: timings[name].p50,
    p99: timings[name].p99,
    ...(name === 'Coppice'
      ? {
          target: {
            of: 'ms above direct (p50)',
            value: timings.Coppice.p50 - timings.direct.p50,
            atMost: 3,
          },
        }
      : {}),
  }));
}

const median = (values: number[]) => values.toSorted((a, b) => a - b)[values.length >> 1]!;

function pgbench(args: string[], { host, port, user, password }: Subject): string {
  const program = globSync('/usr/lib/postgresql/*/bin/pgbench').at(-1)!;
  const { status, stdout, stderr } = spawnSync(
    program,
    [...args, '-h', host, '-p', String(port), '-U', user, 'postgres'],
    {
      encoding: 'utf8',
      env: { ...process.env, PGSSLMODE: 'disable', PGPASSWORD: password ?? '' },
    },
  );
  if (status !== 0) throw new Error(`pgbench failed: ${stderr}`);
  return stdout;
}

/**
 * PgBouncer refuses to run as root, and the instance takes nobody but the service's user. As root it
 * therefore runs in a user namespace, where it believes to be somebody else.
 */
async function startPgBouncer(server: Subject, scratch: string) {
  const port = await freePort();
  const file = join(scratch, 'pgbouncer.ini');
  const users = join(scratch, 'users.txt');
  writeFileSync(users, '"admin" ""\n');
  writeFileSync(
    file,
    `[databases]
postgres = host=${server.host} port=${server.port} dbname=postgres user=admin
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = trust
auth_file = ${users}
pool_mode = session
max_client_conn = 200
default_pool_size = 45
`,
  );
  const isRoot = process.getuid?.() === 0;
  if (isRoot) {
    chmodSync(server.host, 0o711);
    chmodSync(join(server.host, `.s.PGSQL.${server.port}`), 0o777);
  }
  const disguise = ['unshare', '--user', '--map-user=1000', '--map-group=1000'];
  const [command, ...args] = [...(isRoot ? disguise : []), '/usr/sbin/pgbouncer', '-q', file];
  // `unshare` becomes PgBouncer: the process is the same.
  const child = spawn(command!, args, { stdio: 'ignore' });
  const exited = once(child, 'exit');
  const subject: Subject = { host: '127.0.0.1', port, user: 'admin', pid: child.pid! };
  await reachable(subject, child.pid!);
  return {
    subject,
    async stop() {
      child.kill('SIGKILL');
      await exited;
    },
  };
}

async function reachable(subject: Subject, pid: number): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    const client = new pg.Client({
      ...subject,
      database: 'postgres',
      connectionTimeoutMillis: 2_000,
    });
    try {
      await client.connect();
      await client.end();
      return;
    } catch (error) {
      if (attempt > 100 || !existsSync(`/proc/${pid}`)) throw error;
      await new Promise((done) => setTimeout(done, 50));
    }
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  server.close();
  return port;
}

function ensurePackages(): void {
  const missing = [
    ...(existsSync('/usr/sbin/pgbouncer') ? [] : ['pgbouncer']),
    ...(globSync('/usr/lib/postgresql/*/bin/pgbench').length > 0 ? [] : ['postgresql']),
  ];
  if (missing.length === 0) return;
  const { status } = spawnSync(
    'apt-get',
    ['install', '-y', '-qq', '--no-install-recommends', ...missing],
    { stdio: ['ignore', 'ignore', 'inherit'] },
  );
  if (status !== 0) throw new Error(`this case needs the packages ${missing.join(', ')}`);
}
