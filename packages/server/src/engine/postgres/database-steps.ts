// The numbered steps that make a customer's database out of a blank cluster. The template has all of
// them; a database made earlier gets the missing ones when it wakes. Which it has is written inside
// it, so that branches and points in time know it of themselves.
import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type pg from 'pg';

export interface DatabaseSteps {
  readonly steps: readonly { name: string; sql: string }[];
  /** Same steps, same fingerprint. */
  readonly fingerprint: string;
}

export async function loadDatabaseSteps(directory: string): Promise<DatabaseSteps> {
  const names = (await readdir(directory)).filter((name) => /^\d{4}-.*\.sql$/.test(name)).sort();
  const steps = await Promise.all(
    names.map(async (name) => ({ name, sql: await readFile(join(directory, name), 'utf8') })),
  );
  const hash = createHash('sha256');
  for (const { name, sql } of steps) hash.update(`${name}\0${sql}\0`);
  return { steps, fingerprint: hash.digest('hex').slice(0, 16) };
}

/** Applies what is missing, each step in a transaction of its own. `client` is a superuser's. */
export async function applyDatabaseSteps(client: pg.Client, known: DatabaseSteps): Promise<void> {
  // In the template as in a database whose owner has made things of the same names.
  await client.query('set search_path = pg_catalog');
  const applied = await appliedSteps(client);
  for (const { name, sql } of known.steps) {
    if (applied.has(name)) continue;
    try {
      await client.query('begin');
      await client.query(sql);
      await client.query('insert into coppice.steps (name) values ($1)', [name]);
      await client.query('commit');
    } catch (error) {
      await client.query('rollback').catch(() => {});
      throw new Error(`database step ${name} failed: ${(error as Error).message}`, {
        cause: error,
      });
    }
  }
}

async function appliedSteps(client: pg.Client): Promise<Set<string>> {
  await client.query(`
    create schema if not exists coppice;
    create table if not exists coppice.steps
      (name text primary key, applied_at timestamptz not null default now())`);
  const { rows } = await client.query<{ name: string }>('select name from coppice.steps');
  return new Set(rows.map((row) => row.name));
}
