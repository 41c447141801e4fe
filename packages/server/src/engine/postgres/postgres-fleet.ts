// The fleet of fleet.ts: instances on disk, their making, their end, and drafts on the way to
// becoming one. What runs and when is the supervisor's affair.
import { randomUUID } from 'node:crypto';
import { chmod, chown, lstat, mkdir, rename } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from '../../kernel/logger.ts';
import type { Lease } from '../engine.ts';
import { type DatabaseSteps, loadDatabaseSteps } from './database-steps.ts';
import type { Draft, Fleet, FleetHooks, RunningDraft } from './fleet.ts';
import { readRecord, sync, writeFirstRecord, writeRecord } from './instance-record.ts';
import { createLaterSyncs } from './later-syncs.ts';
import { finish, launchInstance, ownerOf } from './launch.ts';
import { pathsIn } from './layout.ts';
import { createPool } from './pool.ts';
import type { PostgresHost } from './postgres-host.ts';
import { type Postmaster, startPostmaster } from './postmaster.ts';
import { claimOwners, clearRemains, pruneTemplates, reconcileInstances } from './reconcile.ts';
import { type InstanceLimits, instanceSettings } from './server-settings.ts';
import { asSuperuser, connectSuperuser } from './superuser.ts';
import { createSupervisor, type SupervisorStats } from './supervisor.ts';
import { ensureTemplate, templateData } from './template.ts';

export interface FleetOptions {
  /** Seconds without use after which a database goes to sleep. */
  idleSeconds: number;
  maxRunning: number;
  /** Prepared copies kept ready. */
  poolSize: number;
  limits: InstanceLimits;
}

export interface FleetStats extends SupervisorStats {
  pooled: number;
}

export interface PostgresFleet extends Fleet {
  create(id: string, adminVerifier: string): Promise<void>;
  destroy(id: string): Promise<void>;
  wake(id: string): Promise<Lease>;
  sizeBytes(id: string): Promise<number>;
  onSleep(listener: (id: string) => void): void;
  onWake(listener: (id: string) => void): void;
  reconcile(known: ReadonlySet<string>): Promise<void>;
  stats(): FleetStats;
  /** Settles when the pool is full. */
  prepared(): Promise<void>;
  close(): Promise<void>;
}

export async function openFleet(deps: {
  host: PostgresHost;
  /** Where the steps of databases lie. */
  schemaDirectory: string;
  options: FleetOptions;
  /** Filled in by history before the first instance is made. */
  hooks: FleetHooks;
  logger: Logger;
}): Promise<PostgresFleet> {
  const { host, options, hooks, logger } = deps;
  const { layout, owners, trees } = host;
  await clearRemains(host);
  await claimOwners(host);
  const steps: DatabaseSteps = await loadDatabaseSteps(deps.schemaDirectory);
  const template = await ensureTemplate({ host, steps, limits: options.limits, logger });
  const settings = instanceSettings(host.binaries, options.limits);
  const pool = createPool({ host, template, hooks, logger, target: options.poolSize });
  const pathsOf = (id: string) => pathsIn(join(layout.instances, id));
  const syncs = createLaterSyncs(logger);
  const { sessionMemoryMb } = options.limits;
  const launching = { host, steps, hooks, settings, sessionMemoryMb };
  const supervisor = createSupervisor({
    async launch(id) {
      await syncs.filesOf(pathsOf(id).root);
      return launchInstance(launching, id, pathsOf(id));
    },
    hooks,
    logger,
    idleMs: options.idleSeconds * 1_000,
    maxRunning: options.maxRunning,
  });
  const postmasters = new WeakMap<RunningDraft, Postmaster>();

  /** The draft's directory is the instance from here on, whatever happens. */
  async function install(draft: Draft, id: string): Promise<void> {
    const { root } = pathsOf(id);
    if (await lstat(root).catch(() => null)) throw new Error(`there is an instance ${id} already`);
    await rename(draft.paths.root, root);
  }

  async function discard(root: string): Promise<void> {
    const trash = join(layout.trash, randomUUID());
    await rename(root, trash).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOENT') throw error;
    });
    void trees.remove(trash).catch(() => {});
  }

  async function withRunning<T>(id: string, work: Parameters<Fleet['withRunning']>[1]) {
    const lease = await supervisor.wake(id);
    try {
      return (await asSuperuser(lease.socketDirectory, work)) as T;
    } finally {
      lease.release();
    }
  }

  return {
    paths: pathsOf,
    owner: (id) => ownerOf(host, pathsOf(id)),
    exists: async (id) => (await lstat(pathsOf(id).data).catch(() => null)) !== null,
    isAwake: supervisor.isAwake,
    wake: supervisor.wake,
    onSleep: supervisor.onSleep,
    onWake: supervisor.onWake,
    withRunning,

    async ifAsleep(id, work) {
      await ownerOf(host, pathsOf(id));
      return supervisor.ifAsleep(id, () => work(pathsOf(id)));
    },

    async templateData(id) {
      const record = await readRecord(pathsOf(id).root);
      return record?.template ? templateData(layout.templates, record.template) : undefined;
    },

    async create(id, adminVerifier) {
      const { draft, isSynced } = await pool.take();
      try {
        await writeFirstRecord(draft.paths.root, {
          template: template.fingerprint,
          steps: steps.fingerprint,
          adminVerifier,
        });
        await install(draft, id);
        await hooks.onCreate?.(id);
        syncs.add(pathsOf(id).root, isSynced);
      } catch (error) {
        await discard(draft.paths.root);
        await discard(pathsOf(id).root);
        owners.release(draft.owner);
        throw error;
      }
    },

    async destroy(id) {
      const paths = pathsOf(id);
      const owner = await ownerOf(host, paths).catch(() => undefined);
      await supervisor.remove(id, () => discard(paths.root));
      owners.release(owner);
    },

    async sizeBytes(id) {
      const { data } = pathsOf(id);
      await ownerOf(host, pathsOf(id));
      // 1 and 4 are template1 and template0.
      return trees.measure(join(data, 'base'), { except: ['1', '4'] });
    },

    async prepareDraft() {
      const draft = { paths: pathsIn(join(layout.drafts, randomUUID())), owner: owners.allocate() };
      await mkdir(draft.paths.root);
      await chmod(draft.paths.root, 0o711);
      await mkdir(draft.paths.data, { mode: 0o700 });
      if (draft.owner) await chown(draft.paths.data, draft.owner.uid, draft.owner.gid);
      return draft;
    },

    async giveToOwner({ owner }, directory) {
      if (owner) await trees.give(directory, owner);
    },

    async startDraft(draft, extra, signal) {
      const postmaster = await startPostmaster({
        binaries: host.binaries,
        data: draft.paths.data,
        socketDirectory: join(layout.sockets, `draft-${randomUUID().slice(0, 8)}`),
        owner: draft.owner,
        settings: { ...settings, ...extra },
        readyTimeoutMs: 24 * 3_600_000,
        ...(signal ? { signal } : {}),
      });
      const running: RunningDraft = {
        draft,
        exited: postmaster.exited,
        connect: () => connectSuperuser(postmaster.socketDirectory),
        stop: async (mode) => void (await postmaster.stop(mode)),
      };
      postmasters.set(running, postmaster);
      return running;
    },

    async adopt(draft, id, { adminVerifier, running }) {
      const record = { template: null, steps: null, adminVerifier };
      const { root } = draft.paths;
      await writeRecord(root, record);
      const postmaster = running && postmasters.get(running);
      if (postmaster)
        await asSuperuser(postmaster.socketDirectory, (client) =>
          finish(client, root, record, steps),
        );
      await install(draft, id);
      await sync(layout.instances);
      if (postmaster) supervisor.enter(id, postmaster);
    },

    async discardDraft(draft) {
      await discard(draft.paths.root);
      owners.release(draft.owner);
    },

    async reconcile(known) {
      await reconcileInstances(host, known, logger);
      await pruneTemplates(host, template.fingerprint);
      pool.fill();
    },

    stats: () => ({ ...supervisor.stats(), pooled: pool.size }),
    prepared: () => pool.filled(),

    async close() {
      const pooled = pool.close();
      await supervisor.close();
      await Promise.all([pooled, syncs.settled()]);
    },
  };
}
