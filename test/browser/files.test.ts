// The SDK's files in a real browser: its own WebSocket, Blobs, streams, and SHA-256 without Node.
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type BrowserPage, openBrowserPage } from '../support/browser.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let browser: BrowserPage;

beforeAll(async () => {
  [service, browser] = await Promise.all([
    startService(),
    openBrowserPage({ sdk: '@coppice/sdk' }),
  ]);
});
afterAll(async () => {
  await browser?.close();
  await service?.stop();
});

test('uploads a Blob with progress, reads it back, watches', async () => {
  const account = await service.api.register();
  const database = await account.database();
  const { body } = await account.post(`/customer/databases/${database.id}/connect-token`, {
    role: 'admin',
  });
  const outcome = await browser.page.evaluate(
    async ({ url, username, password }) => {
      const { connectFiles } = (globalThis as unknown as { sdk: typeof import('@coppice/sdk') })
        .sdk;
      const files = await connectFiles({ url, username, password });
      await files.mkdir('/photos');
      const events: string[] = [];
      const { promise: ready, resolve } = Promise.withResolvers<void>();
      const watching = (async () => {
        for await (const { type, path } of files.watch('/photos', { ready: resolve })) {
          events.push(`${type} ${path}`);
          if (type === 'deleted') break;
        }
      })();
      await ready;

      const bytes = new Uint8Array(3_500_000).map((_, i) => (i * 31) ^ (i >> 9));
      let progress = 0;
      const entry = await files.write('/photos/größe.bin', new Blob([bytes]), {
        onProgress: (sent) => {
          progress = sent;
        },
      });
      const { stream, size } = await files.download('/photos/größe.bin');
      let at = 0;
      let same = true;
      const reader = stream.getReader();
      for (let it = await reader.read(); !it.done; it = await reader.read()) {
        for (const byte of it.value) if (byte !== bytes[at++]) same = false;
      }
      await files.write('/photos/note.txt', 'kleiner Text');
      const text = await files.readText('/photos/note.txt');
      const missing = await files.read('/photos/nothing').catch((error) => error.code);
      const refused = await connectFiles({ url, username, password: 'wrong' }).catch(
        (error) => error.code,
      );
      await files.rm('/photos', { recursive: true });
      await watching;
      files.close();
      return { entry: entry.path, size, progress, read: at, same, text, missing, refused, events };
    },
    {
      url: body.fs_websocket_url as string,
      username: body.user as string,
      password: body.token as string,
    },
  );
  expect(outcome).toEqual({
    entry: '/photos/größe.bin',
    size: 3_500_000,
    progress: 3_500_000,
    read: 3_500_000,
    same: true,
    text: 'kleiner Text',
    missing: 'ENOENT',
    refused: 'EAUTH',
    events: ['created /photos/größe.bin', 'created /photos/note.txt', 'deleted /photos'],
  });
  expect(browser.messages).toEqual([]);
});
