// Copying, handing over, removing and measuring whole trees, on threads of their own.
import { type CopyTreeOptions, copyTree, giveTree, measureTree, removeTree } from './copy-tree.ts';
import type { Owner } from './fleet.ts';
import { createThreads, serveJobs, type Urgency } from './threads.ts';

type Job =
  | { kind: 'copy'; from: string; to: string; options: CopyTreeOptions }
  | { kind: 'give'; path: string; owner: Owner }
  | { kind: 'remove'; path: string }
  | { kind: 'measure'; path: string; except: readonly string[] };

export interface TreeWorker {
  copy(from: string, to: string, options: CopyTreeOptions, urgency?: Urgency): Promise<void>;
  give(path: string, owner: Owner): Promise<void>;
  remove(path: string, urgency?: Urgency): Promise<void>;
  /** Sum of the sizes of all files below `path`, but for entries of it named in `except`. */
  measure(path: string, options: { except: readonly string[] }): Promise<number>;
  /** Jobs not done yet are dropped: their promises reject. */
  close(): Promise<void>;
}

const threadCount = 2;

export function createTreeWorker(): TreeWorker {
  const threads = createThreads<Job>(new URL(import.meta.url), {
    name: 'trees',
    size: threadCount,
  });
  return {
    async copy(from, to, options, urgency) {
      await threads.run({ kind: 'copy', from, to, options }, urgency);
    },
    async give(path, owner) {
      await threads.run({ kind: 'give', path, owner });
    },
    async remove(path, urgency = 'background') {
      await threads.run({ kind: 'remove', path }, urgency);
    },
    measure: (path, { except }) => threads.run({ kind: 'measure', path, except }),
    close: () => threads.close(),
  };
}

serveJobs(perform);

function perform(job: Job): number {
  if (job.kind === 'measure') return measureTree(job.path, job.except);
  if (job.kind === 'copy') copyTree(job.from, job.to, job.options);
  else if (job.kind === 'give') giveTree(job.path, job.owner);
  else removeTree(job.path);
  return 0;
}
