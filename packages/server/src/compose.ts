// Builds the whole service in plain code, from the machine up to the doors, and takes it down in
// reverse.
import { createAddresses } from './compose/addresses.ts';
import type { Basics } from './compose/basics.ts';
import { checkPorts, openDoors } from './compose/doors.ts';
import { createFeatures, type Features } from './compose/features.ts';
import { type Machine, openMachine } from './compose/machine.ts';
import { type Config, ConfigError } from './config.ts';
import type { MadeDatabase } from './features/databases/index.ts';
import { systemClock } from './kernel/clock.ts';
import type { Logger } from './kernel/logger.ts';
import { createReleasers } from './kernel/releasers.ts';

export interface Service {
  /** Where clients reach it. */
  publicUrl: string;
  gateway: { host: string; port: number };
  /** Where to sign in with the development issuer, if there is one. */
  signInUrl: string | undefined;
  /** For the operator: a database from a stored backup, in an anonymous account made for it. */
  restoreStored(
    backupId: string,
    name: string,
  ): Promise<{
    account: { anonymous_id: string; anonymous_secret: string; token: string };
    database: MadeDatabase;
  }>;
  stop(): Promise<void>;
}

/** Starts everything. `progress` is told, in words for a person, what takes long. */
export async function startService(
  config: Config,
  logger: Logger,
  progress: (message: string) => void,
): Promise<Service> {
  const basics: Basics = {
    clock: systemClock,
    logger,
    releasers: createReleasers(logger),
    progress,
  };
  try {
    return await compose(config, basics);
  } catch (error) {
    await basics.releasers.release();
    throw error;
  }
}

async function compose(config: Config, basics: Basics): Promise<Service> {
  await checkPorts(config);
  const addresses = createAddresses(config);
  const machine = await openMachine(config, basics);
  const features = await createFeatures(config, machine, addresses, basics);
  await startWork(config, machine, features, basics);
  await openDoors(config, machine, features, addresses, basics);

  const { accounts, backups, developmentIssuer } = features;
  return {
    publicUrl: addresses.publicUrl(),
    gateway: { host: addresses.publicHost, port: addresses.gatewayPort() },
    signInUrl: developmentIssuer?.startUrl(),
    async restoreStored(backupId, name) {
      const account = await accounts.register('operator');
      const { anonymous_id, anonymous_secret } = account;
      const { key } = await accounts.verifyAnonymous(anonymous_id, anonymous_secret);
      const owner = { accountKey: key, isAnonymous: true };
      return { account, database: await backups.restoreStored(owner, backupId, name) };
    },
    stop: () => basics.releasers.release(),
  };
}

/** Settles whatever a crash left, before anyone is let in, and starts what runs by itself. */
async function startWork(
  config: Config,
  { engine, history }: Machine,
  { databases, secrets, functions, jobs, backups }: Features,
  { clock, logger, releasers }: Basics,
): Promise<void> {
  await databases.recover();
  await engine.reconcile(await databases.knownIds());
  history.upkeep.start();
  // Values that secrets had are kept as long as a branch can reach back to them.
  const historyMs = config.historyDays * 24 * 3_600_000;
  const forgetting = setInterval(() => {
    secrets
      .prune(new Date(clock.now().getTime() - historyMs))
      .catch((error) => logger.warn({ err: error }, 'could not forget old values of secrets'));
  }, 3_600_000);
  releasers.push('forgetting old secrets', () => clearInterval(forgetting));
  await functions.start();
  releasers.push('functions', () => functions.stop());
  jobs.start();
  releasers.push('jobs', () => jobs.close());
  if (config.backupSchedule !== undefined) scheduleBackups(config.backupSchedule);

  function scheduleBackups(cron: string): void {
    try {
      const { backupKeepDays: keepDays } = config;
      const schedule = backups.startSchedule({ cron, keepDays }, clock, logger);
      releasers.push('backup schedule', () => schedule.stop());
    } catch (error) {
      throw new ConfigError(`--backup-schedule: ${(error as Error).message}`);
    }
  }
}
