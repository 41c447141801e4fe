// The threads that copy and link files for cloneTree, a batch of files at a time. Synchronous calls
// in a thread are several times faster for small files than one asynchronous call each.
import {
  closeSync,
  constants,
  copyFileSync,
  fchownSync,
  fstatSync,
  lchownSync,
  linkSync,
  openSync,
  readSync,
  writeSync,
} from 'node:fs';
import { availableParallelism } from 'node:os';
import { isMainThread, parentPort, Worker } from 'node:worker_threads';
import type { Owner } from '../fleet.ts';
import { codeOf } from './errno.ts';

export interface CloneBatch {
  kind: 'copy' | 'link';
  source: string;
  target: string;
  /** Relative to both trees. */
  files: string[];
  owner: Owner | undefined;
}

export interface ClonePool {
  /** Starts the threads, so that the first batch does not wait for them. */
  warm(): void;
  run(batch: CloneBatch): Promise<void>;
  close(): Promise<void>;
}

interface Pending {
  batch: CloneBatch;
  resolve(): void;
  reject(error: Error): void;
}

interface Thread {
  worker: Worker;
  current: Pending | undefined;
}

export function createClonePool(
  size = Math.min(4, Math.max(2, availableParallelism())),
): ClonePool {
  const threads = new Set<Thread>();
  const queue: Pending[] = [];
  let closed = false;

  function start(): Thread {
    const worker = new Worker(new URL(import.meta.url), { name: 'clone' });
    const thread: Thread = { worker, current: undefined };
    threads.add(thread);
    worker.on('message', (failure: { message: string; code?: string } | null) => {
      const done = thread.current;
      thread.current = undefined;
      worker.unref();
      if (failure) done?.reject(Object.assign(new Error(failure.message), { code: failure.code }));
      else done?.resolve();
      feed();
    });
    worker.on('error', (error) => {
      threads.delete(thread);
      thread.current?.reject(error as Error);
      thread.current = undefined;
      if (!closed) feed();
    });
    return thread;
  }

  function feed(): void {
    while (queue.length > 0 && !closed) {
      let thread = [...threads].find(({ current }) => !current);
      if (!thread && threads.size < size) thread = start();
      if (!thread) return;
      thread.current = queue.shift()!;
      thread.worker.ref();
      thread.worker.postMessage(thread.current.batch);
    }
  }

  return {
    warm() {
      while (threads.size < size) start().worker.unref();
    },
    run(batch) {
      if (closed) return Promise.reject(new Error('the clone pool is closed'));
      return new Promise((resolve, reject) => {
        queue.push({ batch, resolve, reject });
        feed();
      });
    },
    async close() {
      closed = true;
      const dropped = [...queue.splice(0), ...[...threads].map(({ current }) => current)];
      await Promise.all([...threads].map(({ worker }) => worker.terminate()));
      for (const pending of dropped) pending?.reject(new Error('the clone pool is closed'));
    },
  };
}

if (!isMainThread && parentPort) {
  const port = parentPort;
  port.on('message', (batch: CloneBatch) => {
    try {
      perform(batch);
      port.postMessage(null);
    } catch (error) {
      const { message, code } = error as NodeJS.ErrnoException;
      port.postMessage({ message, code });
    }
  });
}

function perform({ kind, source, target, files, owner }: CloneBatch): void {
  const place = kind === 'link' ? linkFile : copy;
  for (const file of files) {
    const to = `${target}/${file}`;
    try {
      place(`${source}/${file}`, to, owner);
    } catch (error) {
      if (codeOf(error) !== 'ENOENT') throw error;
    }
  }
}

/** Set when this thread has seen that the filesystem cannot share blocks. */
let cannotShare = false;

function copy(from: string, to: string, owner: Owner | undefined): void {
  if (!cannotShare)
    try {
      copyFileSync(from, to, constants.COPYFILE_FICLONE_FORCE);
      if (owner) lchownSync(to, owner.uid, owner.gid);
      return;
    } catch (error) {
      if (codeOf(error) === 'ENOENT') throw error;
      cannotShare = codeOf(error) === 'ENOTSUP' || codeOf(error) === 'ENOSYS';
    }
  copyBytes(from, to, owner);
}

let buffer: Buffer | undefined;

/**
 * Not copyFileSync: it truncates the new file, which makes ext4 write every one of them out when it
 * is closed instead of all together later, at half the speed.
 */
function copyBytes(from: string, to: string, owner: Owner | undefined): void {
  buffer ??= Buffer.allocUnsafeSlow(1 << 20);
  const source = openSync(from, constants.O_RDONLY | constants.O_NOFOLLOW);
  try {
    const flags = constants.O_WRONLY | constants.O_CREAT;
    const target = openSync(to, flags, fstatSync(source).mode & 0o777);
    try {
      if (owner) fchownSync(target, owner.uid, owner.gid);
      for (;;) {
        const length = readSync(source, buffer, 0, buffer.length, null);
        if (length === 0) break;
        for (let done = 0; done < length; ) done += writeSync(target, buffer, done, length - done);
      }
    } finally {
      closeSync(target);
    }
  } finally {
    closeSync(source);
  }
}

/** A file that can have no further name (too many already, another volume) is copied. */
function linkFile(from: string, to: string): void {
  try {
    linkSync(from, to);
  } catch (error) {
    if (codeOf(error) !== 'EMLINK' && codeOf(error) !== 'EXDEV') throw error;
    copy(from, to, undefined);
  }
}
