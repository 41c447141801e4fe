// The thread of `unpack` in archive.ts.
import { parentPort, workerData } from 'node:worker_threads';
import { type UnpackAnswer, type UnpackRequest, unpackHere } from './archive.ts';

const answer: UnpackAnswer = await unpackHere(workerData as UnpackRequest).then(
  (names) => ({ names }),
  (error: Error) => ({
    problem:
      error.name === 'ArchiveError'
        ? error.message
        : `the bundle is not a readable archive: ${error.message}`,
  }),
);
parentPort!.postMessage(answer);
