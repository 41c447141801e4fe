// Moving bytes between a client and its server, both ways, until one of them ends.
import type { Socket } from 'node:net';
import type { OnQuery } from './query-meter.ts';

export interface Splice {
  client: Socket;
  /** What was read of the client too early: goes to the server first. */
  clientRest: Buffer;
  server: Socket;
  serverRest: Buffer;
  /** Query texts are sampled a database. */
  databaseId: string;
  onQuery: OnQuery;
  /** Ends the connection when aborted. */
  signal: AbortSignal;
  /** What the client is told then: a FATAL message. */
  farewell(): Buffer;
  /** 0: never. */
  idleTimeoutMs: number;
  /** What a client is told that has been idle for too long. */
  idleFarewell: Buffer;
}

export interface SpliceEnd {
  /** The client went away while the server still worked for it. */
  leftBusy: boolean;
}

export interface Relay {
  /** Takes the sockets over; resolves when the client is gone. */
  splice(splice: Splice): Promise<SpliceEnd>;
  close(): Promise<void>;
}
