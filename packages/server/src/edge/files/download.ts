// One stream to the client. The network holds it back, and a client that asked for a window holds
// it back further: at most that many bytes are under way beyond what it has acknowledged.
import { createHash } from 'node:crypto';
import { FileError, type OpenFile } from '../../kernel/files.ts';
import { createFrame } from './frames.ts';
import type { Outbox } from './outbox.ts';

const frameBytes = 256 * 1024;

export interface Download {
  /** Sends the whole file; resolves with its checksum. */
  run(file: OpenFile, signal: AbortSignal): Promise<{ size: number; sha256: string }>;
  /** The client has used up `received` bytes. */
  acknowledge(received: number): void;
}

export function createDownload(
  stream: number,
  outbox: Outbox,
  { window = Number.POSITIVE_INFINITY, stallMs }: { window?: number; stallMs: number },
): Download {
  let sentBytes = 0;
  let acknowledgedBytes = 0;
  let wake: (() => void) | undefined;

  /** Waits for `done`, but not for ever on a client that has stopped reading. */
  async function patiently(done: Promise<void>, signal: AbortSignal): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    let onAbort: (() => void) | undefined;
    const givenUp = new Promise<never>((_, reject) => {
      timer = setTimeout(
        () => reject(new FileError('EIO', 'the client took no content for too long')),
        stallMs,
      );
      onAbort = () => reject(new FileError('EIO', 'given up before its end'));
      signal.addEventListener('abort', onAbort);
    });
    try {
      signal.throwIfAborted();
      await Promise.race([done, givenUp]);
    } finally {
      clearTimeout(timer);
      if (onAbort) signal.removeEventListener('abort', onAbort);
    }
  }

  return {
    async run(file, signal) {
      const hash = createHash('sha256');
      const frame = createFrame(stream, Math.min(frameBytes, file.length));
      async function flush(): Promise<void> {
        while (sentBytes - acknowledgedBytes >= window)
          await patiently(
            new Promise<void>((resolve) => {
              wake = resolve;
            }),
            signal,
          );
        hash.update(frame.content);
        sentBytes += frame.content.length;
        await patiently(outbox.send(frame.bytes), signal);
        frame.clear();
      }
      for await (const chunk of file.chunks)
        for (let at = 0; at < chunk.length; ) {
          at += frame.fill(chunk, at);
          if (frame.full) await flush();
        }
      if (frame.content.length > 0) await flush();
      return { size: sentBytes, sha256: hash.digest('hex') };
    },
    acknowledge(received) {
      acknowledgedBytes = Math.min(Math.max(acknowledgedBytes, received), sentBytes);
      wake?.();
    },
  };
}
