// The cluster that new databases are copies of: a blank one with every step applied. It is made
// once for each combination of Postgres version and steps, in the cache, and copied from there to
// the data directory, where it stays as long as a database made of it does (history counts on it).
import { createHash, randomUUID } from 'node:crypto';
import { chmod, mkdir, open, readdir, rename, rm, stat, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from '../../kernel/logger.ts';
import { applyDatabaseSteps, type DatabaseSteps } from './database-steps.ts';
import type { PostgresHost } from './postgres-host.ts';
import { startPostmaster } from './postmaster.ts';
import { type InstanceLimits, instanceSettings } from './server-settings.ts';
import { asSuperuser } from './superuser.ts';
import { syncFilesystem } from './sync-filesystem.ts';

export interface Template {
  readonly fingerprint: string;
  readonly data: string;
}

interface TemplateDeps {
  host: PostgresHost;
  steps: DatabaseSteps;
  limits: InstanceLimits;
  logger: Logger;
}

/** As given to initdb; blank-cluster.ts. */
const segmentBytes = 2n ** 20n;
/** Changes with how a template is made of the same parts. */
const recipe = 2;

export const templateData = (templates: string, fingerprint: string) =>
  join(templates, fingerprint, 'data');

export async function ensureTemplate(deps: TemplateDeps): Promise<Template> {
  const { host, steps, logger } = deps;
  const blank = await host.blankCluster();
  const fingerprint = createHash('sha256')
    .update(`${blank.split('/').at(-1)}\0${steps.fingerprint}\0${recipe}`)
    .digest('hex')
    .slice(0, 16);
  const data = templateData(host.layout.templates, fingerprint);
  if (await isThere(data)) return { fingerprint, data };

  const started = Date.now();
  logger.info('making the template of new databases');
  const cached = join(host.cacheDir, `template-${fingerprint}`);
  const draft = join(host.layout.templates, `draft-${randomUUID()}`);
  await mkdir(draft);
  await chmod(draft, 0o711);
  try {
    if (await isThere(cached))
      await host.trees.copy(cached, join(draft, 'data'), { owner: undefined, link: true });
    else await build(deps, blank, join(draft, 'data'), cached);
    await syncFilesystem(draft);
    await rename(draft, join(host.layout.templates, fingerprint));
  } finally {
    await rm(draft, { recursive: true, force: true });
  }
  logger.info({ durationMs: Date.now() - started }, 'made the template of new databases');
  return { fingerprint, data };
}

async function build(
  { host, steps, limits }: TemplateDeps,
  blank: string,
  data: string,
  cached: string,
): Promise<void> {
  const owner = host.owners.allocate();
  const socketDirectory = join(host.layout.sockets, 'template');
  try {
    await host.trees.copy(blank, data, { owner });
    const postmaster = await startPostmaster({
      binaries: host.binaries,
      data,
      socketDirectory,
      owner,
      settings: { ...instanceSettings(host.binaries, limits), autovacuum: 'off', fsync: 'off' },
    });
    try {
      await asSuperuser(socketDirectory, async (client) => {
        await applyDatabaseSteps(client, steps);
        await client.query('vacuum (freeze, analyze)');
      });
    } finally {
      await postmaster.stop('fast');
    }
    await trim(data);
    if (owner) await host.trees.give(data, { uid: 0, gid: 0 });
    if (host.cacheDir !== host.layout.dataDir) await keepInCache(host, data, cached);
  } finally {
    await rm(socketDirectory, { recursive: true, force: true });
    host.owners.release(owner);
  }
}

/**
 * Leaves out what Postgres makes again when it needs it, a third of the files: maps of free space
 * and of visibility, and segments of the log that initdb kept for later use.
 */
async function trim(data: string): Promise<void> {
  const databases = (await readdir(join(data, 'base'))).map((oid) => join(data, 'base', oid));
  for (const directory of [join(data, 'global'), ...databases])
    for (const name of await readdir(directory))
      if (/^\d+_(fsm|vm)$/.test(name)) await unlink(join(directory, name));
  const log = join(data, 'pg_wal');
  for (const name of await readdir(log))
    if (/^[0-9A-F]{24}$/.test(name) && !(await isWritten(log, name))) await unlink(join(log, name));
}

/** A segment's first page says where in the log it is; one kept for later says where it was. */
async function isWritten(log: string, name: string): Promise<boolean> {
  const { bytesRead, buffer } = await readStart(join(log, name), 16);
  const segment =
    BigInt(`0x${name.slice(8, 16)}`) * (2n ** 32n / segmentBytes) + BigInt(`0x${name.slice(16)}`);
  return bytesRead === 16 && buffer.readBigUInt64LE(8) === segment * segmentBytes;
}

async function readStart(path: string, length: number) {
  const file = await open(path);
  try {
    return await file.read(Buffer.alloc(length), 0, length, 0);
  } finally {
    await file.close();
  }
}

/** Several services may fill the cache at once; one of them wins. */
async function keepInCache(host: PostgresHost, data: string, cached: string): Promise<void> {
  const draft = `${cached}.${randomUUID()}`;
  await host.trees.copy(data, draft, { owner: undefined, link: true });
  await rename(draft, cached).catch(() => host.trees.remove(draft));
}

const isThere = async (data: string) =>
  Boolean(await stat(join(data, 'PG_VERSION')).catch(() => null));
