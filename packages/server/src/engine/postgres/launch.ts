// From a stopped directory to a server that people may enter: remains of a crash are cleared, the
// server is started, and what it must have before anyone gets in (admin's password, steps that came
// with a newer release) is done. What was done is recorded, so that most wakes only start a server.
import { lstat } from 'node:fs/promises';
import { join } from 'node:path';
import type pg from 'pg';
import { notFound } from '../../kernel/app-error.ts';
import { quoteLiteral } from '../../kernel/sql-quote.ts';
import { applyDatabaseSteps, type DatabaseSteps } from './database-steps.ts';
import type { FleetHooks, InstancePaths, Owner, Settings } from './fleet.ts';
import { type InstanceRecord, readRecord, writeRecord } from './instance-record.ts';
import { clearLeftovers } from './orphans.ts';
import type { PostgresHost } from './postgres-host.ts';
import { type Postmaster, startPostmaster } from './postmaster.ts';
import { asSuperuser } from './superuser.ts';

export interface LaunchDeps {
  host: PostgresHost;
  steps: DatabaseSteps;
  hooks: FleetHooks;
  settings: Settings;
  sessionMemoryMb: number;
}

/** Whose files they are; fails with 404 for an id that has no directory. */
export async function ownerOf(
  host: PostgresHost,
  paths: InstancePaths,
): Promise<Owner | undefined> {
  const found = await lstat(paths.data).catch(() => null);
  if (!found) throw notFound('database');
  return host.owners.named ? { uid: found.uid, gid: found.gid } : undefined;
}

export async function launchInstance(
  { host, steps, hooks, settings, sessionMemoryMb }: LaunchDeps,
  id: string,
  paths: InstancePaths,
): Promise<Postmaster> {
  const owner = await ownerOf(host, paths);
  const record = await readRecord(paths.root);
  if (!record) throw new Error(`${paths.root} has no instance.json`);
  await clearLeftovers(paths.data);
  const postmaster = await startPostmaster({
    binaries: host.binaries,
    data: paths.data,
    socketDirectory: join(host.layout.sockets, id),
    owner,
    settings: { ...settings, ...hooks.settings?.(id) },
    sessionMemoryMb,
    // After a crash a large database replays its log first.
    readyTimeoutMs: 600_000,
  });
  const { onAwake } = hooks;
  const unfinished = isUnfinished(record, steps);
  if (!unfinished && !onAwake) return postmaster;
  try {
    await asSuperuser(postmaster.socketDirectory, async (client) => {
      if (unfinished) await finish(client, paths.root, record, steps);
      await onAwake?.(id, client);
    });
    return postmaster;
  } catch (error) {
    await postmaster.stop('fast');
    throw error;
  }
}

export const isUnfinished = (record: InstanceRecord, steps: DatabaseSteps) =>
  record.adminVerifier !== undefined || record.steps !== steps.fingerprint;

/** Does what is still to do, then records that it is done. Doing it twice does no harm. */
export async function finish(
  client: pg.Client,
  root: string,
  record: InstanceRecord,
  steps: DatabaseSteps,
): Promise<void> {
  const { adminVerifier, ...done } = record;
  if (done.steps !== steps.fingerprint) await applyDatabaseSteps(client, steps);
  if (adminVerifier !== undefined && !(record.template && (await hasPassword(client))))
    await client.query(`alter role admin password ${quoteLiteral(adminVerifier)}`);
  await writeRecord(root, { ...done, steps: steps.fingerprint });
}

/** A copy of the template has none: one that has was finished, though a power cut undid the record. */
async function hasPassword(client: pg.Client): Promise<boolean> {
  const { rows } = await client.query(
    `select from pg_catalog.pg_authid where rolname = 'admin' and rolpassword is not null`,
  );
  return rows.length > 0;
}
