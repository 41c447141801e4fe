// The service as the cases about databases need it: no quotas or rate limits in the way.
import pg from 'pg';
import type { Account, CreatedDatabase } from '../../test/support/api.ts';
import {
  type RunningService,
  type ServiceOptions,
  startService,
} from '../../test/support/service.ts';
import { createHttpClient, type HttpClient } from './http-client.ts';

export interface FleetService {
  service: RunningService;
  account: Account;
  http: HttpClient;
  create(name: string): Promise<CreatedDatabase>;
  /** A connection through the gateway, as any client makes it. */
  connect(database: CreatedDatabase): Promise<pg.Client>;
  /** One figure of /metrics, without `coppice_`. */
  metric(name: string): Promise<number>;
  stop(): Promise<void>;
}

export async function startFleetService(
  flags: string[] = [],
  options: ServiceOptions = {},
): Promise<FleetService> {
  const service = await startService({
    ...options,
    flags: [
      ...['--requests-per-second', '1000000', '--request-burst', '1000000'],
      ...['--anonymous-database-limit', '100000', '--max-running', '1000'],
      // As it is by default, not as tests have it.
      ...['--pool-size', '24', '--log-level', 'error'],
      ...flags,
    ],
  });
  const account = await service.api.register();
  const http = createHttpClient(service.baseUrl, { token: account.token, connections: 16 });
  return {
    service,
    account,
    http,
    async create(name) {
      return JSON.parse((await http.request('POST', '/customer/databases', { name })).text);
    },
    async connect({ id, admin_password }) {
      const client = new pg.Client({
        host: service.gateway.host,
        port: service.gateway.port,
        user: `${id}.admin`,
        password: admin_password,
        database: 'postgres',
      });
      client.on('error', () => {});
      await client.connect();
      return client;
    },
    async metric(name) {
      const response = await fetch(`${service.baseUrl}/metrics`);
      const line = (await response.text())
        .split('\n')
        .find((row) => row.startsWith(`coppice_${name} `));
      if (line === undefined) throw new Error(`no metric ${name}`);
      return Number(line.split(' ')[1]);
    },
    async stop() {
      await http.close();
      await service.stop();
    },
  };
}

/** Waits for a figure of /metrics; `idle-seconds` takes its time. */
export async function untilMetric(
  fleet: FleetService,
  name: string,
  isReached: (value: number) => boolean,
  timeoutMs = 120_000,
): Promise<void> {
  const deadline = Date.now() + timeoutMs;
  while (!isReached(await fleet.metric(name))) {
    if (Date.now() > deadline) throw new Error(`${name} did not get there`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
