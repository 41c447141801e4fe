// Normalises queries with Postgres's own parser, in a thread of its own: a text that blows the
// parser's stack takes this thread down, not the service.
import { parentPort } from 'node:worker_threads';
import { loadModule, normalizeSync } from 'libpg-query';

await loadModule();
parentPort?.on('message', (texts: string[]) => {
  parentPort?.postMessage(
    texts.map((text) => {
      try {
        return normalizeSync(text);
      } catch {
        return null; // not valid SQL
      }
    }),
  );
});
