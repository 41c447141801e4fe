// What the features know of the machinery that runs databases: small enough that another
// implementation (databases on an existing cluster, say) can take its place. It knows no accounts
// and no HTTP; a database is an id.
import type { Readable, Writable } from 'node:stream';
import type { BackupAbout } from './backup-stream.ts';

/** A database held awake: it is not put to sleep before `release`. */
export interface Lease {
  /** Directory of the Unix socket; with `port` what `pg` calls `host` and `port`. */
  readonly socketDirectory: string;
  readonly port: number;
  /** Aborted when the instance goes away under the holder (crash, destruction, shutdown). */
  readonly signal: AbortSignal;
  release(): void;
}

export interface HistoryWindow {
  /** Earliest and latest instants a branch can be taken at. */
  from: Date;
  to: Date;
}

/** The instant asked for is not within the history there is. */
export class OutsideHistory extends Error {
  readonly window: HistoryWindow;

  constructor(window: HistoryWindow) {
    super(`history reaches from ${window.from.toISOString()} to ${window.to.toISOString()}`);
    this.name = 'OutsideHistory';
    this.window = window;
  }
}

export interface Engine {
  /** Makes a database. `adminVerifier`: SCRAM verifier of the role `admin`. */
  create(id: string, options: { adminVerifier: string }): Promise<void>;
  /** Ends its connections and removes everything it has. Unknown ids are fine. */
  destroy(id: string): Promise<void>;
  /** Starts the database if it sleeps, and holds it awake. */
  wake(id: string): Promise<Lease>;
  /**
   * A new database `childId` with the parent's content: now, or with all that was committed up to a
   * past instant (microseconds since 1970) and nothing after. Throws `OutsideHistory`.
   */
  branch(
    parentId: string,
    childId: string,
    options: { adminVerifier: string; atMicros?: bigint | undefined },
  ): Promise<void>;
  /** Writes a self-contained copy of the database to `sink`, in the format of backup-stream.ts. */
  backUp(
    id: string,
    sink: Writable,
    options: { about: BackupAbout; signal?: AbortSignal | undefined },
  ): Promise<void>;
  /** A new database from what `backUp` wrote; it has been started and asked once. */
  restore(
    id: string,
    source: Readable,
    options: { adminVerifier: string; signal?: AbortSignal | undefined },
  ): Promise<void>;
  history(id: string): Promise<HistoryWindow>;
  /** Bytes on disk of the database's own data. Does not wake it. */
  sizeBytes(id: string): Promise<number>;
  /** Called before an instance stops, so that pools drop their idle connections to it. */
  onSleep(listener: (id: string) => void): void;
  /** Called when an instance has started, before `wake` resolves: listeners may begin to connect. */
  onWake(listener: (id: string) => void): void;
  /** Removes what belongs to no id in `known`; called once at start-up. */
  reconcile(known: ReadonlySet<string>): Promise<void>;
}
