-- The roles of every database. `postgres` is the service's own superuser; nobody else ever is one.
-- All four may log in, but have no password until one is set: the gateway decides who comes as whom.

create role admin login createrole createdb;
create role readonly login;
create role anon login;
create role authenticated login;

grant pg_monitor, pg_signal_backend, pg_checkpoint to admin;
do $$
begin
  if current_setting('server_version_num')::int >= 170000 then
    grant pg_maintain to admin;
  end if;
  if current_setting('server_version_num')::int >= 160000 then
    -- May act as them and hand them out, but does not count as them in policies.
    execute 'grant readonly, anon, authenticated to admin'
      ' with admin option, inherit false, set true';
    -- What its own roles own, admin may use, as the owner of everything expects.
    alter role admin set createrole_self_grant = 'set, inherit';
  else
    grant readonly, anon, authenticated to admin with admin option;
    -- Before version 16 createrole may hand out every role but superusers, also these three, which
    -- reach the host. They are pinned, so DROP ROLE refuses.
    set local allow_system_table_mods = on;
    delete from pg_authid
     where rolname in ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files');
  end if;
end
$$;

-- Owning the database makes admin the owner of schema public, too (pg_database_owner).
alter database postgres owner to admin;

grant pg_read_all_data to readonly;
alter role readonly set default_transaction_read_only = on;

-- End users: what they may see of a table is for row-level security to say.
grant usage on schema public to anon, authenticated;
alter default privileges for role admin in schema public
  grant select, insert, update, delete on tables to anon, authenticated;
alter default privileges for role admin in schema public
  grant usage, select on sequences to anon, authenticated;

-- The database's owner may set defaults for all sessions in it (alter database … set); those of the
-- superuser must neither run the owner's functions in place of built-in ones nor be cut short.
do $$
declare
  setting record;
begin
  for setting in
    select * from (values
      ('search_path', 'pg_catalog'), ('role', 'none'), ('standard_conforming_strings', 'on'),
      ('default_transaction_read_only', 'off'), ('default_transaction_isolation', 'read committed'),
      ('default_transaction_deferrable', 'off'), ('row_security', 'on'),
      ('statement_timeout', '0'), ('transaction_timeout', '0'), ('lock_timeout', '0'),
      ('idle_in_transaction_session_timeout', '0'), ('idle_session_timeout', '0'),
      ('datestyle', 'ISO, MDY'), ('intervalstyle', 'postgres'), ('timezone', 'UTC'),
      ('bytea_output', 'hex'), ('extra_float_digits', '1'), ('transform_null_equals', 'off'),
      ('default_table_access_method', 'heap'), ('default_tablespace', ''), ('temp_tablespaces', ''),
      ('check_function_bodies', 'on'), ('client_min_messages', 'notice')
    ) as wanted (name, value)
    where name = 'role' or name in (select lower(s.name) from pg_settings s)
  loop
    execute format('alter role postgres set %I = %L', setting.name, setting.value);
  end loop;
end
$$;
