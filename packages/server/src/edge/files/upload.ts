// One stream from the client: frames go in, the database takes them out at its own pace.
import { createHash } from 'node:crypto';
import type { FileEntry } from '@coppice/contract';
import { FileError } from '../../kernel/files.ts';

export interface Upload extends AsyncIterable<Buffer> {
  push(bytes: Buffer): void;
  /** All has been sent; throws what the content is refused for. */
  end(sha256: string): Promise<FileEntry>;
  /** Makes the content end with an error, so that nothing of it is kept. */
  fail(error: FileError): void;
  /** `end` has been called: who called it learns the outcome. */
  readonly ending: boolean;
  /** Bytes that came in and were not taken out yet. */
  readonly queuedBytes: number;
}

export function createUpload(hooks: {
  /** The database is ready for the content. */
  onReady(): void;
  /** `queuedBytes` changed, or bytes were taken: `taken` so far. */
  onFlow(taken: number): void;
  /** Settles with the outcome of the whole upload. */
  outcome(): Promise<FileEntry>;
  stallMs: number;
}): Upload {
  const hash = createHash('sha256');
  const queue: Buffer[] = [];
  let queuedBytes = 0;
  let takenBytes = 0;
  let state: 'open' | 'ended' | FileError = 'open';
  let ending = false;
  let wake: (() => void) | undefined;

  function settle(next: 'ended' | FileError): void {
    if (state !== 'open') return;
    state = next;
    if (next !== 'ended') {
      queue.length = 0;
      queuedBytes = 0;
      hooks.onFlow(takenBytes);
    }
    wake?.();
  }

  function arrival(): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(
        () => settle(new FileError('EIO', 'no content came for too long')),
        hooks.stallMs,
      );
      wake = () => {
        clearTimeout(timer);
        wake = undefined;
        resolve();
      };
    });
  }

  async function* content(): AsyncGenerator<Buffer> {
    hooks.onReady();
    while (true) {
      if (state instanceof FileError) throw state;
      const bytes = queue.shift();
      if (bytes) {
        yield bytes;
        queuedBytes -= bytes.length;
        takenBytes += bytes.length;
        hooks.onFlow(takenBytes);
      } else if (state === 'ended') return;
      else await arrival();
    }
  }

  return {
    [Symbol.asyncIterator]: () => content(),
    push(bytes) {
      if (state !== 'open') return;
      hash.update(bytes);
      queue.push(bytes);
      queuedBytes += bytes.length;
      hooks.onFlow(takenBytes);
      wake?.();
    },
    end(sha256) {
      ending = true;
      const matches = hash.digest('hex') === sha256;
      settle(matches ? 'ended' : new FileError('EINVAL', 'the content does not have that sha256'));
      return hooks.outcome();
    },
    fail: settle,
    get ending() {
      return ending;
    },
    get queuedBytes() {
      return queuedBytes;
    },
  };
}
