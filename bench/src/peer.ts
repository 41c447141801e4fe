// Peers run as processes of their own, like the service itself.
import { spawn } from 'node:child_process';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

export interface Peer {
  url: string;
  pid: number;
  stop(): Promise<void>;
}

/** Starts `peers/<name>.ts`, which sends `{ url }` to its parent once it listens. */
export function startPeer(
  name: string,
  args: string[] = [],
  env: Record<string, string> = {},
): Promise<Peer> {
  const file = resolve(fileURLToPath(import.meta.url), `../peers/${name}.ts`);
  const child = spawn(process.execPath, [file, ...args], {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    env: { ...process.env, ...env },
  });
  const ended = new Promise<void>((done) => child.once('exit', () => done()));
  return new Promise((done, fail) => {
    child.once('message', (message) =>
      done({
        url: (message as { url: string }).url,
        pid: child.pid!,
        async stop() {
          child.kill();
          await ended;
        },
      }),
    );
    child.once('exit', (code) => fail(new Error(`peer ${name} ended with ${code}`)));
  });
}
