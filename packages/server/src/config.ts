// Every setting of the service: one entry here gives it a flag, an environment variable, a line in
// `--help` and a row in docs/operating.md (a test compares them).
import { randomBytes } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';

interface Setting<T> {
  about: string;
  /** As shown in `--help`; '' when it has no value unless given. */
  defaultText: string;
  parse(text: string | undefined): T;
}

export class ConfigError extends Error {}

const text = <D extends string | undefined>(fallback: D, about: string): Setting<string | D> => ({
  about,
  defaultText: fallback ?? '',
  parse: (given) => (given === undefined || given === '' ? fallback : given),
});

const oneOf = <const T extends string>(choices: readonly T[], fallback: T, about: string) => ({
  about: `${about} (${choices.join(', ')})`,
  defaultText: fallback as string,
  parse(given: string | undefined): T {
    const value = given ?? fallback;
    if (!choices.includes(value as T))
      throw new ConfigError(`must be one of ${choices.join(', ')}`);
    return value as T;
  },
});

const number = (
  fallback: number,
  about: string,
  { min = 0, max = Number.MAX_SAFE_INTEGER, whole = true } = {},
): Setting<number> => ({
  about,
  defaultText: String(fallback),
  parse(given) {
    if (given === undefined) return fallback;
    const value = Number(given);
    if (given.trim() === '' || !Number.isFinite(value) || (whole && !Number.isInteger(value)))
      throw new ConfigError(`must be a ${whole ? 'whole ' : ''}number`);
    if (value < min || value > max) throw new ConfigError(`must be between ${min} and ${max}`);
    return value;
  },
});

const optionalNumber = (
  about: string,
  limits: { min?: number; max?: number } = {},
): Setting<number | undefined> => ({
  about,
  defaultText: '',
  parse: (given) =>
    given === undefined || given === '' ? undefined : number(0, about, limits).parse(given),
});

const flag = (about: string, fallback = false): Setting<boolean> => ({
  about,
  defaultText: String(fallback),
  parse(given) {
    if (given === undefined) return fallback;
    if (given !== 'true' && given !== 'false') throw new ConfigError('must be true or false');
    return given === 'true';
  },
});

const list = (about: string): Setting<readonly string[]> => ({
  about: `${about}; comma-separated`,
  defaultText: '',
  parse: (given) =>
    (given ?? '')
      .split(',')
      .map((part) => part.trim())
      .filter((part) => part !== ''),
});

const port = (fallback: number, about: string) => number(fallback, about, { max: 65_535 });

export const settings = {
  host: text('127.0.0.1', 'Address that HTTP and the Postgres gateway listen on'),
  port: port(8080, 'Port of the HTTP interface; 0 picks a free one'),
  gatewayPort: port(5433, 'Port of the Postgres gateway; 0 picks a free one'),
  gatewayTlsCert: text(
    undefined,
    'PEM file of the certificate of the Postgres gateway; default: self-signed, made on first start',
  ),
  gatewayTlsKey: text(undefined, 'PEM file of its private key'),
  gatewayRequireTls: flag('Refuse Postgres connections that are not encrypted'),
  gatewayConnections: number(
    0,
    'Postgres connections of clients to one database; 0: what the database takes, less 20',
  ),
  gatewayIdleSeconds: number(
    86_400,
    'Seconds after which an idle Postgres connection is closed; it holds its database awake; 0: never',
    { max: 2_000_000 },
  ),
  failedLoginBurst: number(60, 'Failed logins to one database from one address at once', {
    min: 1,
  }),
  failedLoginsPerSecond: number(1, 'Failed logins a second after that', {
    min: 0.001,
    whole: false,
  }),
  publicUrl: text(undefined, 'Base URL that clients use; default http://host:port'),
  publicGatewayHost: text(undefined, 'Host name in connection strings; default: host'),
  dataDir: text('./.coppice', 'Directory of everything the service keeps'),
  cacheDir: text(
    undefined,
    'Directory of what can always be made again (binaries, blank cluster); default: the data directory',
  ),
  postgresBin: text(
    undefined,
    'bin directory of a system Postgres, version 15 or later; default: the one from npm',
  ),
  idleSeconds: number(300, 'Seconds without use after which a database goes to sleep', { min: 1 }),
  maxRunning: number(200, 'Databases awake at once; the one idle longest makes room', { min: 1 }),
  poolSize: number(24, 'Databases prepared in advance, so that making one takes no time'),
  instanceConnections: number(60, 'Connections a database takes at once', { min: 10, max: 1000 }),
  instanceSharedBuffersMb: number(16, 'Shared buffers of a database in MiB', {
    min: 1,
    max: 65_536,
  }),
  instanceTemporaryFilesMb: number(5120, 'Temporary files of one session in MiB', { min: 1 }),
  instanceSessionMemoryMb: number(2048, 'Memory of one session of a database in MiB', { min: 64 }),
  uidBase: optionalNumber('First of the 65,536 uids that databases run under when root', {
    min: 1000,
  }),
  historyDays: number(7, 'Days that a branch can reach back', { min: 0.001, whole: false }),
  historyLimitMb: number(
    4096,
    'What the history of one database may take beyond its own size in MiB; it then reaches back less',
    { min: 64 },
  ),
  historyBaseMb: number(64, 'Log in MiB after which a running database gets a new base copy', {
    min: 8,
  }),
  backupDir: text(
    undefined,
    'Directory of backups, best on another volume; default: backups in the data directory',
  ),
  backupSchedule: text(undefined, 'Cron expression (UTC) by which every database is backed up'),
  backupKeepDays: number(30, 'Days that scheduled backups are kept; 0: for ever'),
  heavyJobs: number(2, 'Backups and restores at work at once', { min: 1, max: 64 }),
  metadataUrl: text(undefined, 'postgresql:// URL of an external control database'),
  logLevel: oneOf(
    ['trace', 'debug', 'info', 'warn', 'error', 'silent'],
    'info',
    'What is logged to standard error',
  ),
  masterKey: text(
    undefined,
    'Key of everything sealed at rest: 32 bytes in base64 or hex; several, separated by commas: the first seals, all open. Default: a file in the data directory',
  ),
  oidcIssuers: list('Identity providers trusted for claim and sign-in, each issuer=audience'),
  trustProxy: flag('Take client addresses from X-Forwarded-For'),
  allowPrivateFetch: flag(
    'Allow fetching JWKS and bundles from private and loopback addresses although listening beyond loopback',
  ),
  bodyLimitMb: number(64, 'Largest request body in MiB', { min: 1, max: 1024 }),
  sqlSeconds: number(60, 'Seconds a statement may take over HTTP', { min: 0.1, whole: false }),
  sqlResultMb: number(64, 'Largest result of a statement over HTTP in MiB', { min: 1, max: 512 }),
  regions: list('Regions that databases may be created in; none: any label'),
  anonymousDatabaseLimit: number(50, 'Databases an anonymous account may have'),
  databaseLimit: number(1000, 'Databases a verified account may have'),
  branchLimit: number(20, 'Branches a database may have'),
  keyLimit: number(100, 'Keys of each kind a database may have'),
  registrationBurst: number(600, 'Anonymous registrations an address may make at once', { min: 1 }),
  registrationsPerSecond: number(10, 'Anonymous registrations a second after that', {
    min: 0.001,
    whole: false,
  }),
  requestBurst: number(1000, 'Management requests a credential may make at once', { min: 1 }),
  requestsPerSecond: number(200, 'Management requests a second after that', {
    min: 0.001,
    whole: false,
  }),
  invocationBurst: number(500, 'Invocations of one function at once', { min: 1 }),
  invocationsPerSecond: number(100, 'Invocations of one function a second after that', {
    min: 0.001,
    whole: false,
  }),
  functionLimit: number(200, 'Functions a database may have'),
  functionSandboxes: number(48, 'Function sandboxes at once, of all databases together', {
    min: 1,
    max: 10_000,
  }),
  functionSpares: number(3, 'Function sandboxes booted in advance, so that a first run is fast'),
  functionConcurrency: number(10, 'Runs of one function at once; more wait', { min: 1 }),
  functionWaitSeconds: number(10, 'Seconds a run waits for a sandbox before it is turned away', {
    min: 0.1,
    whole: false,
  }),
  functionIdleSeconds: number(60, 'Seconds after its last run that a sandbox stays warm', {
    min: 1,
  }),
  bubblewrap: text(
    undefined,
    'Path of bubblewrap (bwrap), the sandbox of functions; default: the one of the system, installed or downloaded if there is none',
  ),
  functionPrivateNetwork: list(
    'Private addresses that functions may reach if their allowlist names them, each address or address:port',
  ),
  functionUnisolated: flag(
    "Run functions with Deno's permissions only where there is no bubblewrap, although listening beyond loopback",
  ),
  filesQuotaMb: number(10_240, 'Total size of the files of one database in MiB', { min: 1 }),
  filesConnections: number(64, 'WebSocket connections to the files of one database', { min: 1 }),
  filesStreams: number(8, 'Uploads and downloads of one database at once; more wait', { min: 1 }),
  filesRequests: number(128, 'Requests in flight on one connection to the files', { min: 1 }),
  filesFrameMb: number(4, 'Largest message a client may send to the files in MiB', {
    min: 2,
    max: 64,
  }),
  filesIdleSeconds: number(
    1_800,
    'Seconds after which a connection to the files is closed if idle',
    {
      min: 1,
    },
  ),
  filesStallSeconds: number(60, 'Seconds after which a stream on which nothing moves is given up', {
    min: 1,
  }),
  runDays: number(7, 'Days that runs of functions and their logs are kept', {
    min: 0.001,
    whole: false,
  }),
} as const;

type Settings = typeof settings;
export type Config = Readonly<{
  [K in keyof Settings]: Settings[K] extends { parse(text: string | undefined): infer T }
    ? T
    : never;
}>;

export const flagName = (key: string) => `--${key.replace(/[A-Z]/g, (c) => `-${c.toLowerCase()}`)}`;
export const envName = (key: string) =>
  `COPPICE_${key.replace(/[A-Z]/g, (c) => `_${c}`).toUpperCase()}`;

/** Flags win over the environment. Throws a ConfigError that says what to change. */
export function loadConfig(
  argv: readonly string[],
  env: Record<string, string | undefined>,
): Config {
  const given = parseFlags(argv);
  const config: Record<string, unknown> = {};
  for (const [key, setting] of Object.entries(settings)) {
    const name = flagName(key);
    const fromFlag = given.get(name);
    try {
      config[key] = setting.parse(fromFlag ?? env[envName(key)]);
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      throw new ConfigError(`${fromFlag === undefined ? envName(key) : name} ${error.message}`);
    }
  }
  config.dataDir = resolve(config.dataDir as string);
  return Object.freeze(config) as Config;
}

function parseFlags(argv: readonly string[]): Map<string, string> {
  const known = new Map(Object.entries(settings).map(([key, s]) => [flagName(key), s]));
  const given = new Map<string, string>();
  for (let i = 0; i < argv.length; i++) {
    const [name, inline] = splitOnce(argv[i]!, '=');
    const setting = known.get(name);
    if (!setting) throw new ConfigError(`unknown option ${name}; --help lists them`);
    const isSwitch = setting.defaultText === 'true' || setting.defaultText === 'false';
    const next = argv[i + 1];
    if (inline !== undefined) given.set(name, inline);
    else if (isSwitch && next !== 'true' && next !== 'false') given.set(name, 'true');
    else if (next === undefined) throw new ConfigError(`${name} needs a value`);
    else {
      given.set(name, next);
      i++;
    }
  }
  return given;
}

function splitOnce(whole: string, separator: string): [string, string | undefined] {
  const at = whole.indexOf(separator);
  return at === -1 ? [whole, undefined] : [whole.slice(0, at), whole.slice(at + 1)];
}

export function helpText(): string {
  const lines = Object.entries(settings).map(([key, { about, defaultText }]) => {
    const suffix = defaultText === '' ? '' : ` [${defaultText}]`;
    return `  ${flagName(key).padEnd(28)} ${about}${suffix}\n  ${''.padEnd(28)} ${envName(key)}`;
  });
  return `Coppice: the Postgres cloud you can run yourself.

Usage: npm start -- [options]
       npm start -- backups list | verify <id> | restore <id> --name NAME [options]

Each option has an environment variable, named below it; the option wins.

${lines.join('\n')}
`;
}

/** Where backups are kept. */
export const backupDirectory = (config: Config) =>
  config.backupDir ?? join(config.dataDir, 'backups');

export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || host.startsWith('127.');
}

/** The configured master keys, or the one in the data directory, made on first start. */
export function loadMasterKeys(config: Config): Buffer[] {
  if (config.masterKey !== undefined) return config.masterKey.split(',').map(parseMasterKey);
  const file = join(config.dataDir, 'master.key');
  if (!existsSync(file)) {
    mkdirSync(config.dataDir, { recursive: true });
    writeFileSync(file, `${randomBytes(32).toString('base64')}\n`, {
      mode: 0o600,
      flag: 'wx',
      flush: true,
    });
  }
  return readFileSync(file, 'utf8')
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map(parseMasterKey);
}

function parseMasterKey(encoded: string): Buffer {
  const trimmed = encoded.trim();
  const key = Buffer.from(trimmed, /^[0-9a-f]{64}$/i.test(trimmed) ? 'hex' : 'base64');
  if (key.length !== 32)
    throw new ConfigError(`${envName('masterKey')} must be 32 bytes in base64 or hex`);
  return key;
}
