import type { Queryable } from '../../engine/metastore/metastore.ts';

export interface Migration {
  name: string;
  checksum: string;
  applied_at: Date;
  sql_preview: string;
}

/** `admin` may lock any table (pg_maintain): whoever waits for these gives up in time. */
const limitWaiting = "set lock_timeout = '10s'";

export async function listMigrations(db: Queryable): Promise<Migration[]> {
  await db.query(limitWaiting);
  const { rows } = await db.query<Migration>(
    'select name, checksum, applied_at, sql_preview from coppice.migrations order by position',
  );
  return rows;
}

/** See schema/database/0002-migrations.sql. Tickets that a crash left behind go with the next one. */
export async function issueTicket(db: Queryable, secret: string): Promise<void> {
  await db.query(limitWaiting);
  await db.query(
    `with expired as (
       delete from coppice.migration_tickets where created_at < now() - interval '1 day'
     )
     insert into coppice.migration_tickets (hash) values (sha256(convert_to($1, 'UTF8')))`,
    [secret],
  );
}

export const beginMigration = 'select coppice.begin_migration($1, $2)';
export const finishMigration = 'select coppice.finish_migration($1, $2::xid8, $3, $4, $5)';
