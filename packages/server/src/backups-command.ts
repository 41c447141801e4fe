// `npm start -- backups …`: what an operator does with the backups themselves. Listing and verifying
// need nothing but the store; restoring works on an empty control database, too.
import { backupDirectory, type Config, ConfigError, loadConfig } from './config.ts';
import { createLogger } from './kernel/logger.ts';

export const backupsHelp = `Usage: npm start -- backups <command> [options]

  backups list                      what is in the backup directory
  backups verify <id>               read one through and check every byte
  backups restore <id> --name NAME  make a database of it, in a new anonymous account

The options are those of the service (--data-dir, --backup-dir …). Restoring needs the data directory
for itself: stop the service, or use its interface instead.
`;

export async function backupsCommand(
  argv: readonly string[],
  env: Record<string, string | undefined>,
  print: (text: string) => void,
): Promise<number> {
  const [verb, ...rest] = argv;
  const id = rest[0]?.startsWith('--') ? undefined : rest.shift();
  const name = takeName(rest);
  const config = loadConfig(rest, env);
  if (verb === 'list' && id === undefined) return list(config, print);
  if (verb === 'verify' && id !== undefined) return verify(config, id, print);
  if (verb === 'restore' && id !== undefined && name !== undefined)
    return restore(config, id, name, print);
  print(backupsHelp);
  return verb === undefined ? 0 : 2;
}

async function openStore(config: Config) {
  const backups = await import('./features/backups/index.ts');
  return { ...backups, store: backups.createDirectoryStore(backupDirectory(config)) };
}

async function list(config: Config, print: (text: string) => void): Promise<number> {
  const { listStored, store } = await openStore(config);
  const stored = await listStored(store);
  for (const { id, sizeBytes, about } of stored) {
    const size = `${(sizeBytes / 1e6).toFixed(1)} MB`.padStart(12);
    print(
      'error' in about
        ? `${id}  ${size}  ${about.error}\n`
        : `${id}  ${size}  ${about.created_at}  ${about.database_name} (${about.database_id} of ${about.customer_id})${about.label === null ? '' : `  ${about.label}`}\n`,
    );
  }
  print(`${stored.length} backups in ${backupDirectory(config)}\n`);
  return 0;
}

async function verify(config: Config, id: string, print: (text: string) => void): Promise<number> {
  const { verifyStored, store } = await openStore(config);
  try {
    await verifyStored(store, id);
    print(`${id} is whole\n`);
    return 0;
  } catch (error) {
    print(`${id}: ${(error as Error).message}\n`);
    return 1;
  }
}

async function restore(
  config: Config,
  id: string,
  name: string,
  print: (text: string) => void,
): Promise<number> {
  const { startService } = await import('./compose.ts');
  const quiet: Config = { ...config, host: '127.0.0.1', port: 0, gatewayPort: 0 };
  const service = await startService(quiet, createLogger(config.logLevel), () => {});
  try {
    const { account, database } = await service.restoreStored(id, name);
    print(`Restored ${id} as "${name}".

  database          ${database.id}
  admin password    ${database.adminPassword}
  anonymous_id      ${account.anonymous_id}
  anonymous_secret  ${account.anonymous_secret}
  token             ${account.token}

Its customer can take it over with POST /customer/adopt-anonymous-databases.
`);
    return 0;
  } catch (error) {
    print(`${id}: ${(error as Error).message}\n`);
    return 1;
  } finally {
    await service.stop();
  }
}

function takeName(argv: string[]): string | undefined {
  const at = argv.findIndex((word) => word === '--name' || word.startsWith('--name='));
  if (at === -1) return undefined;
  const [word] = argv.splice(at, 1);
  if (word!.includes('=')) return word!.slice('--name='.length);
  const [value] = argv.splice(at, 1);
  if (value === undefined) throw new ConfigError('--name needs a value');
  return value;
}
