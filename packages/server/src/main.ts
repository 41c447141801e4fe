// The command: argv, environment and signals are read here and nowhere else.
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
  // Loaded only now, so that help and refusals come at once.
  const { startService } = await import('./compose.ts');
  const service = await startService(config, logger, (message) =>
    process.stderr.write(`${message} …\n`),
  );

  const { publicUrl, gateway } = service;
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(1);
  process.stdout.write(`
Coppice is ready (${seconds} s).

  API             ${publicUrl}
  Docs            ${publicUrl}/docs
  Postgres        ${gateway.host}:${gateway.port}
${service.signInUrl ? `  Sign-in (dev)   ${service.signInUrl}\n` : ''}  Data directory  ${config.dataDir}

Try it:
  TOKEN=$(curl -s -X POST ${publicUrl}/customer/anonymous-register | grep -o '"token":"[^"]*' | cut -d'"' -f4)
  curl -s ${publicUrl}/customer/databases -H "Authorization: Bearer $TOKEN" -d '{"name": "first"}'
  curl -s ${publicUrl}/customer/me -H "Authorization: Bearer $TOKEN"

Ctrl-C stops everything.
`);

  // Whoever started this as a child (the tests) need not read the text above.
  process.send?.({ publicUrl, gateway });

  const signal = await new Promise<string>((resolve) => {
    for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
      process.once(name, () => resolve(name));
  });
  // A second Ctrl-C does not wait.
  process.once('SIGINT', () => process.exit(130));
  process.stderr.write(`\nStopping (${signal}) …\n`);
  await service.stop();
  process.stderr.write('Stopped.\n');
  return 0;
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
