// What the main thread and the thread of epoll-loop.ts tell each other.

export type ToLoop =
  | {
      kind: 'splice';
      id: number;
      /** Given to the loop, which closes them. */
      clientFd: number;
      serverFd: number;
      clientRest: Uint8Array;
      serverRest: Uint8Array;
      /** Budgets of query texts are by database. */
      databaseId: string;
      idleTimeoutMs: number;
      idleFarewell: Uint8Array;
    }
  | { kind: 'end'; id: number; farewell: Uint8Array }
  | { kind: 'stop' };

export type FromLoop =
  | { kind: 'ended'; id: number; leftBusy: boolean }
  /** Columns of statements that ended; `texts` has an entry where a text is reported. */
  | {
      kind: 'queries';
      ids: number[];
      durationsMs: number[];
      failed: boolean[];
      texts: (string | undefined)[];
    };
