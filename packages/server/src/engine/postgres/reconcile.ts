// At start-up, what lies on disk is compared with the databases that should be there. Servers of a
// killed service have been ended by then (postgres-host.ts).
import { randomUUID } from 'node:crypto';
import { lstat, readdir, rename, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from '../../kernel/logger.ts';
import { readRecord, sync } from './instance-record.ts';
import { pathsIn } from './layout.ts';
import type { PostgresHost } from './postgres-host.ts';

const lostPrefix = 'lost-';
const keepLostMs = 7 * 24 * 3_600_000;

/** Clears what no run can use again; before any instance or copy is made. */
export async function clearRemains(host: PostgresHost): Promise<void> {
  const { layout, trees } = host;
  for (const directory of [layout.drafts, layout.pool])
    for (const name of await readdir(directory))
      await rename(join(directory, name), join(layout.trash, `${name}-${randomUUID()}`));
  for (const name of await readdir(layout.templates))
    if (name.startsWith('draft-'))
      await rename(join(layout.templates, name), join(layout.trash, randomUUID()));
  for (const name of await readdir(layout.trash)) {
    const path = join(layout.trash, name);
    if (name.startsWith(lostPrefix) && Date.now() - (await stat(path)).mtimeMs < keepLostMs)
      continue;
    void trees.remove(path).catch(() => {});
  }
  // Sockets of servers that are gone; the control database's own is not.
  for (const name of await readdir(layout.sockets))
    if (name !== 'control') await rm(join(layout.sockets, name), { recursive: true, force: true });
}

/** Their uids are taken. */
export async function claimOwners(host: PostgresHost): Promise<void> {
  if (!host.owners.named) return;
  for (const id of await readdir(host.layout.instances)) {
    const found = await lstat(pathsIn(join(host.layout.instances, id)).data).catch(() => null);
    if (found) host.owners.claim(found.uid);
  }
}

/**
 * Removes directories without a row. One that was never woken holds nothing and goes at once; any
 * other is kept in the trash for a week, in case the service was pointed at the wrong control
 * database. Rows without a directory are reported: their data is not here.
 */
export async function reconcileInstances(
  host: PostgresHost,
  known: ReadonlySet<string>,
  logger: Logger,
): Promise<void> {
  const { layout, trees } = host;
  const found = new Set(await readdir(layout.instances));
  for (const id of found) {
    if (known.has(id)) continue;
    const root = join(layout.instances, id);
    const record = await readRecord(root).catch(() => null);
    const untouched = record?.adminVerifier !== undefined;
    const trash = join(layout.trash, untouched ? randomUUID() : `${lostPrefix}${id}`);
    await rename(root, trash);
    logger.warn({ database: id, kept: !untouched }, 'removed a directory without a database');
    if (untouched) void trees.remove(trash).catch(() => {});
    else await utimes(trash, new Date(), new Date());
  }
  await sync(layout.instances);
  const missing = [...known].filter((id) => !found.has(id));
  if (missing.length > 0)
    logger.error({ databases: missing }, 'databases without a directory: their data is missing');
}

/** Removes templates that no database was made of, but for the current one. */
export async function pruneTemplates(host: PostgresHost, current: string): Promise<void> {
  const { layout, trees } = host;
  const templates = await readdir(layout.templates);
  if (templates.length <= 1) return;
  const used = new Set([current]);
  for (const id of await readdir(layout.instances)) {
    const record = await readRecord(join(layout.instances, id)).catch(() => null);
    if (record?.template) used.add(record.template);
  }
  for (const name of templates)
    if (!used.has(name)) {
      const trash = join(layout.trash, randomUUID());
      await rename(join(layout.templates, name), trash);
      void trees.remove(trash).catch(() => {});
    }
}
