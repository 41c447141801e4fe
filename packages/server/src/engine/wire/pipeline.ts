// Statements sent one behind the other without waiting: the first that fails makes the server skip
// the rest. Their rows are not wanted, and COPY through the client must not be among them.
import type { Backend } from './backend.ts';
import { statement, sync, backend as type } from './messages.ts';
import { readError, type ServerError } from './server-error.ts';

export interface PipelinedStatement {
  text: string;
  params?: readonly (string | null)[];
}

export type PipelineOutcome =
  | { kind: 'done'; lastTag: string }
  | { kind: 'error'; error: ServerError; index: number };

/** `index` of an outcome: the statement that failed. `onStatement` is called as each one ends. */
export function runPipeline(
  backend: Backend,
  statements: readonly PipelinedStatement[],
  onStatement: () => void,
): Promise<PipelineOutcome> {
  return new Promise((resolve, reject) => {
    let ended = 0;
    let lastTag = '';
    let failure: PipelineOutcome | undefined;
    const messages = statements.map(({ text, params }) => statement(text, params));
    backend.run(Buffer.concat([...messages, sync]), {
      message(kind, bytes, start, end) {
        switch (kind) {
          case type.commandComplete:
            lastTag = bytes.toString('latin1', start, end - 1);
            ended++;
            onStatement();
            return;
          case type.emptyQueryResponse:
            ended++;
            return;
          case type.errorResponse:
            failure ??= { kind: 'error', error: readError(bytes, start, end), index: ended };
        }
      },
      oversize() {},
      ready: () => resolve(failure ?? { kind: 'done', lastTag }),
      lost: (error) => (failure ? resolve(failure) : reject(error)),
    });
  });
}
