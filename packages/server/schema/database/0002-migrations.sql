-- The migrations of a database, recorded in one transaction with their effects.
--
-- A migration runs in a session of `admin`, so that it can do no more than admin may; yet admin must
-- not write the record. So the two functions below do it, for whoever knows the secret of a ticket:
-- the service issues one a migration, as superuser, and only its hash is stored. `begin` takes the
-- lock that serialises migrations, `finish` uses the ticket up.

create schema if not exists coppice;

create table coppice.migrations (
  position bigint generated always as identity,
  name text collate "C" primary key,
  checksum text not null,
  sql_preview text not null,
  applied_at timestamptz(3) not null default clock_timestamp()
);

create table coppice.migration_tickets (
  hash bytea primary key,
  created_at timestamptz not null default now()
);

-- MG409: applied already. Answers the transaction that `finish` must still be in.
create function coppice.begin_migration(p_secret text, p_name text) returns xid8
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if not exists (select from coppice.migration_tickets
                  where hash = sha256(convert_to(p_secret, 'UTF8'))) then
    raise exception 'permission denied' using errcode = '42501';
  end if;
  lock table coppice.migrations in share row exclusive mode;
  if exists (select from coppice.migrations where name = p_name) then
    raise exception 'migration % is applied already', p_name using errcode = 'MG409';
  end if;
  return pg_current_xact_id();
end $$;

create function coppice.finish_migration(
  p_secret text, p_transaction xid8, p_name text, p_checksum text, p_preview text
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  delete from coppice.migration_tickets where hash = sha256(convert_to(p_secret, 'UTF8'));
  if not found then
    raise exception 'permission denied' using errcode = '42501';
  end if;
  if pg_current_xact_id() <> p_transaction then
    raise exception 'the migration left its transaction' using errcode = '25000';
  end if;
  insert into coppice.migrations (name, checksum, sql_preview)
  values (p_name, p_checksum, p_preview);
end $$;

revoke all on function coppice.begin_migration, coppice.finish_migration from public;
grant usage on schema coppice to admin;
grant execute on function coppice.begin_migration, coppice.finish_migration to admin;
