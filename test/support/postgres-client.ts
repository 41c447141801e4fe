// Connecting to a database through the Postgres port, with node-postgres.
import pg from 'pg';

export interface Target {
  host: string;
  port: number;
}

export interface ConnectOptions {
  user: string;
  password: string;
  database?: string;
  ssl?: boolean;
  options?: string;
}

/** A connected client; ends of connections are no uncaught errors. */
export async function connect(
  { host, port }: Target,
  { user, password, database = 'postgres', ssl = false, options }: ConnectOptions,
): Promise<pg.Client> {
  const client = new pg.Client({
    host,
    port,
    user,
    password,
    database,
    ssl: ssl ? { rejectUnauthorized: false } : false,
    ...(options === undefined ? {} : { options }),
    connectionTimeoutMillis: 20_000,
  });
  client.on('error', () => {});
  await client.connect();
  return client;
}

/** The SQLSTATE that a login is refused with; 'in' if it is not. */
export async function loginResult(target: Target, options: ConnectOptions): Promise<string> {
  try {
    const client = await connect(target, options);
    await client.end();
    return 'in';
  } catch (error) {
    return (error as { code?: string }).code ?? (error as Error).message;
  }
}

/** Resolves with the SQLSTATE of the error that ends the client's connection, if there is one. */
export function ended(client: pg.Client): Promise<string | undefined> {
  return new Promise((done) => {
    let code: string | undefined;
    client.on('error', (error) => {
      code ??= (error as { code?: string }).code;
    });
    client.once('end', () => done(code));
  });
}
