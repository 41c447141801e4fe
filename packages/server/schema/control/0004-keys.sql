-- Keys of databases. Only SHA-256 of a value is stored.
create table connect_keys (
  id text primary key,
  database_id text not null references databases on delete cascade,
  name text not null,
  role text not null,
  scopes text[] not null,
  value_hash bytea not null unique,
  created_at timestamptz(3) not null default now(),
  -- null: never
  expires_at timestamptz(3)
);
create index on connect_keys (database_id);

create table publishable_keys (
  id text primary key,
  database_id text not null references databases on delete cascade,
  name text not null,
  allowed_origins text[] not null,
  exposed_schemas text[] not null,
  exposed_tables text[] not null,
  -- null: no limit of its own
  rate_limit jsonb,
  value_hash bytea not null unique,
  created_at timestamptz(3) not null default now(),
  expires_at timestamptz(3)
);
create index on publishable_keys (database_id);

create table service_keys (
  id text primary key,
  database_id text not null references databases on delete cascade,
  name text not null,
  value_hash bytea not null unique,
  created_at timestamptz(3) not null default now(),
  expires_at timestamptz(3)
);
create index on service_keys (database_id);

-- How the tokens of a database's end users are verified.
create table auth_configs (
  database_id text primary key references databases on delete cascade,
  auth_mode text not null,
  byo_jwt jsonb,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);

-- Connections that a revoked key opened end in every process; caches forget what was changed.
create function notify_key() returns trigger language plpgsql as $$
begin
  perform pg_notify(tg_table_name, old.id);
  return null;
end $$;
create trigger notify_connect_key after update or delete on connect_keys
  for each row execute function notify_key();
create trigger notify_publishable_key after update or delete on publishable_keys
  for each row execute function notify_key();

create function notify_auth_config() returns trigger language plpgsql as $$
begin
  perform pg_notify('auth_configs', coalesce(new.database_id, old.database_id));
  return null;
end $$;
create trigger notify_auth_config after insert or update or delete on auth_configs
  for each row execute function notify_auth_config();
