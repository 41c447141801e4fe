// `deno serve` with a trivial handler: what the same code costs without a service around it.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

const packages: Record<string, string> = {
  'linux-arm64': '@deno/linux-arm64-glibc',
  'linux-x64': '@deno/linux-x64-glibc',
  'darwin-arm64': '@deno/darwin-arm64',
};
const name = packages[`${process.platform}-${process.arch}`]!;
const manifest = createRequire(import.meta.url).resolve(`${name}/package.json`);
const directory = mkdtempSync(join(tmpdir(), 'coppice-bench-deno-'));
writeFileSync(
  join(directory, 'main.js'),
  'export default { fetch: async (request) => Response.json({ echo: (await request.json()).input }) }',
);
const child = spawn(
  join(dirname(manifest), 'deno'),
  ['serve', '--no-config', '--port', '0', '--host', '127.0.0.1', join(directory, 'main.js')],
  { stdio: ['ignore', 'pipe', 'pipe'], env: { HOME: directory, NO_COLOR: '1' } },
);
const report = (chunk: Buffer) => {
  const url = /http:\/\/127\.0\.0\.1:\d+/.exec(chunk.toString())?.[0];
  if (url) process.send?.({ url });
};
child.stdout.on('data', report);
child.stderr.on('data', report);
process.on('SIGTERM', () => {
  child.kill();
  rmSync(directory, { recursive: true, force: true });
  process.exit();
});
