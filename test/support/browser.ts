// A real browser: Debian's Chromium, without a window.
import { existsSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { delimiter, join } from 'node:path';
import { build } from 'esbuild';
import { type Browser, chromium, type Page } from 'playwright-core';

export interface BrowserPage {
  page: Page;
  /** What the page wrote to its console, and errors nobody caught. */
  readonly messages: string[];
  close(): Promise<void>;
}

/** Opens an empty page whose origin is not the service's, with `modules` as globals. */
export async function openBrowserPage(modules: Record<string, string>): Promise<BrowserPage> {
  const script = await bundle(modules);
  const server = createServer((request, response) => {
    const isScript = request.url === '/script.js';
    response.setHeader('content-type', isScript ? 'text/javascript' : 'text/html');
    response.end(isScript ? script : '<!doctype html><script src="/script.js"></script>');
  });
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  const browser: Browser = await chromium.launch({
    executablePath: chromiumPath(),
    args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu'],
  });
  const page = await browser.newPage();
  const messages: string[] = [];
  page.on('console', (message) => messages.push(message.text()));
  page.on('pageerror', (error) => messages.push(String(error)));
  await page.goto(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
  return {
    page,
    messages,
    async close() {
      await browser.close();
      await new Promise((done) => server.close(done));
    },
  };
}

/** Each module (by path or package name) under its name, as one script for browsers. */
async function bundle(modules: Record<string, string>): Promise<string> {
  const lines = Object.entries(modules).map(
    ([name, from]) =>
      `import * as ${name} from ${JSON.stringify(from)}; globalThis.${name} = ${name};`,
  );
  const result = await build({
    stdin: { contents: lines.join('\n'), resolveDir: import.meta.dirname },
    bundle: true,
    write: false,
    format: 'iife',
    platform: 'browser',
    target: 'es2022',
    // What only Node can do is loaded when it is asked for, which browsers never do.
    external: ['node:*'],
  });
  return result.outputFiles[0]!.text;
}

function chromiumPath(): string {
  const names = ['chromium', 'chromium-browser', 'google-chrome'];
  for (const directory of (process.env.PATH ?? '').split(delimiter))
    for (const name of names) if (existsSync(join(directory, name))) return join(directory, name);
  throw new Error('no Chromium on PATH');
}
