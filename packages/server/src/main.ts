// The command: argv, environment and signals are read here and nowhere else.
import { once } from 'node:events';
import type { Service } from './compose.ts';
import { ConfigError, helpText, loadConfig } from './config.ts';
import { createLogger } from './kernel/logger.ts';

async function main(argv: readonly string[]): Promise<number | undefined> {
  if (argv[0] === 'backups') {
    const { backupsCommand } = await import('./backups-command.ts');
    return backupsCommand(argv.slice(1), process.env, (text) => process.stdout.write(text));
  }
  if (argv.includes('--help') || argv.includes('-h')) {
    process.stdout.write(helpText());
    return 0;
  }
  const startedAt = performance.now();
  const config = loadConfig(argv, process.env);
  const logger = createLogger(config.logLevel, { human: process.stderr.isTTY });
  const toldToStop = listenForSignals();
  // Loaded only now, so that help and refusals come at once.
  const { startService } = await import('./compose.ts');
  const service = await startService(config, logger, (message) =>
    process.stderr.write(`${message} …\n`),
  );
  // One that is told to stop while it starts stops as soon as it has.
  if (!toldToStop.aborted) {
    announce(service, config.dataDir, performance.now() - startedAt);
    await once(toldToStop, 'abort');
  }
  await service.stop();
  process.stderr.write('Stopped.\n');
  return 0;
}

/** Aborted by the first signal to stop; a second Ctrl-C does not wait. */
function listenForSignals(): AbortSignal {
  const controller = new AbortController();
  for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
    process.once(name, () => {
      process.stderr.write(`\nStopping (${name}) …\n`);
      process.once('SIGINT', () => process.exit(130));
      controller.abort();
    });
  return controller.signal;
}

function announce(service: Service, dataDir: string, startMs: number): void {
  const { publicUrl, gateway, signInUrl } = service;
  process.stdout.write(`
Coppice is ready (${(startMs / 1000).toFixed(1)} s).

  API             ${publicUrl}
  Docs            ${publicUrl}/docs
  Postgres        ${gateway.host}:${gateway.port}
${signInUrl ? `  Sign-in (dev)   ${signInUrl}\n` : ''}  Data directory  ${dataDir}

Try it:
  TOKEN=$(curl -s -X POST ${publicUrl}/customer/anonymous-register | grep -o '"token":"[^"]*' | cut -d'"' -f4)
  curl -s ${publicUrl}/customer/databases -H "Authorization: Bearer $TOKEN" -d '{"name": "first"}'
  curl -s ${publicUrl}/customer/me -H "Authorization: Bearer $TOKEN"

Ctrl-C stops everything.
`);
  // Whoever started this as a child (the tests) need not read the text above.
  process.send?.({ publicUrl, gateway });
}

try {
  process.exitCode = await main(process.argv.slice(2));
  if (process.exitCode !== undefined) process.exit();
} catch (error) {
  if (error instanceof ConfigError || (error as Error).name === 'DataDirectoryInUse')
    process.stderr.write(`coppice: ${(error as Error).message}\n`);
  else process.stderr.write(`coppice: could not start\n${(error as Error).stack}\n`);
  process.exit(1);
}
