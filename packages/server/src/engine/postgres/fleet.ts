// What history (branches, points in time, backups) may ask of the fleet of Postgres instances, and
// what the fleet asks of history. On disk, below the data directory:
//
//   instances/<id>/           mode 0711, owned by the service: one database
//     instance.json           what the fleet knows of it
//     data/                   PGDATA, 0700, owned by the instance's own uid (the service's if not root)
//     history/                history's own; made by history, gone with the instance
//   drafts/<name>/            the same shape, becoming an instance; emptied at start-up
//   templates/<fingerprint>/data/   the cluster that new databases are copied from; never changes
//   pool/<name>/              prepared copies of the template; same shape as an instance
//   trash/                    on the way out; emptied in the background
//
// A postmaster's working directory is its `data/`, and it knows its own place only through that: an
// instance's directory can be renamed while it runs, and paths in settings are best relative to
// `data/` (`../history/wal`).
import type pg from 'pg';
import type { Engine } from '../engine.ts';

export interface InstancePaths {
  root: string;
  data: string;
  history: string;
}

/** Who owns the files of an instance; `undefined` when everything is the service's own. */
export interface Owner {
  uid: number;
  gid: number;
}

/** Server settings, given on the command line of a start; they win over every other place. */
export type Settings = Record<string, string>;

/** A directory that is to become a database. It counts for nothing until it is adopted. */
export interface Draft {
  readonly paths: InstancePaths;
  readonly owner: Owner | undefined;
}

/** A draft whose postmaster runs. Ends with `stop`, with its own exit, or with adoption. */
export interface RunningDraft {
  readonly draft: Draft;
  /** Settles with the postmaster's exit, wanted or not; `log` holds its last lines. */
  readonly exited: Promise<{ code: number | null; signal: NodeJS.Signals | null; log: string }>;
  /** A superuser session; the caller ends it. */
  connect(): Promise<pg.Client>;
  stop(mode: 'fast' | 'immediate'): Promise<void>;
}

export interface AdoptOptions {
  /** SCRAM verifier of the role `admin`, set before anyone gets in. */
  adminVerifier: string;
  /** The draft's postmaster, to keep it running (it must have left recovery); else it is stopped. */
  running?: RunningDraft;
}

export interface Fleet {
  paths(id: string): InstancePaths;
  owner(id: string): Promise<Owner | undefined>;
  exists(id: string): Promise<boolean>;
  isAwake(id: string): boolean;
  /** Wakes the instance, holds it awake and gives a superuser session that ends with `work`. */
  withRunning<T>(id: string, work: (client: pg.Client) => Promise<T>): Promise<T>;
  /**
   * If the instance is asleep (cleanly stopped) now: holds it asleep while `work` reads its
   * directory; wakes wait. If it is awake, starting or stopping: `{ ran: false }` at once.
   */
  ifAsleep<T>(
    id: string,
    work: (paths: InstancePaths) => Promise<T>,
  ): Promise<{ ran: false } | { ran: true; value: T }>;
  /** `data/` of the template that new databases are copied from. Templates in use are kept. */
  templateData(id: string): Promise<string | undefined>;
  /** An empty directory `drafts/<name>/` with an empty `data/` of a fresh owner. */
  prepareDraft(): Promise<Draft>;
  /** Gives every file below `directory` to the draft's owner; needed after writing as the service. */
  giveToOwner(draft: Draft, directory: string): Promise<void>;
  /**
   * Starts a postmaster in the draft with the usual settings and `settings` on top of them, and
   * returns when it accepts connections: with `hot_standby=off`, after recovery. One that exits
   * before rejects with `PostmasterFailed`, whose `exit.log` says why.
   */
  startDraft(draft: Draft, settings: Settings, signal?: AbortSignal): Promise<RunningDraft>;
  /** Atomically and durably makes the draft the instance `id`. */
  adopt(draft: Draft, id: string, options: AdoptOptions): Promise<void>;
  discardDraft(draft: Draft): Promise<void>;
}

/** What the fleet asks of history. All are awaited where they are called; each is optional. */
export interface FleetHooks {
  /** Settings of every start of an instance (archiving …); not of drafts. */
  settings?(id: string): Settings;
  /** A pool copy was made, in the background: make what every instance needs beside `data/`. */
  onPrepare?(draft: Draft): Promise<void>;
  /** The prepared copy is the instance `id` now; the create is answered after this. Keep it cheap. */
  onCreate?(id: string): Promise<void>;
  /** Awake; nobody is let in before this is done. */
  onAwake?(id: string, client: pg.Client): Promise<void>;
  /** About to be stopped for sleep or shutdown; nobody is connected but `client`. */
  beforeSleep?(id: string, client: pg.Client): Promise<void>;
  /** Stopped. Wakes wait for this; at shutdown there is little time. */
  afterStop?(id: string, reason: StopReason): Promise<void>;
}

/** After `sleep` and `shutdown` the directory is cleanly stopped; after `crash` it is not. */
export type StopReason = 'sleep' | 'shutdown' | 'crash';

/** The part of the engine that history is; `createPostgresEngine` puts it on top of the fleet. */
export interface History extends Pick<Engine, 'branch' | 'backUp' | 'restore' | 'history'> {
  readonly hooks: FleetHooks;
  close?(): Promise<void>;
}
