// Normalises queries with Postgres's own parser, in a process of its own: a text that blows the
// parser's stack takes this process down, not the service.
import { fingerprintSync, loadModule, normalizeSync } from 'libpg-query';

await loadModule();
process.on('message', (texts: string[]) => {
  process.send?.(
    texts.map((text) => {
      try {
        return { fingerprint: fingerprintSync(text), query: normalizeSync(text) };
      } catch {
        return null; // not valid SQL
      }
    }),
  );
});
// The service is gone.
process.on('disconnect', () => process.exit());
