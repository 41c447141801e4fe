-- Every value a secret has had: the current one, and those it replaced, so that a branch at a past
-- instant gets the values of that instant. Old ones go when the history no longer reaches them.
create table secret_values (
  key bigint generated always as identity primary key,
  database_id text not null references databases on delete cascade,
  name text not null,
  value_sealed bytea not null,
  created_at timestamptz(3) not null,
  valid_from timestamptz not null default clock_timestamp(),
  -- null: the current value
  valid_until timestamptz
);
create unique index on secret_values (database_id, name) where valid_until is null;
create index on secret_values (database_id);
create index on secret_values (valid_until) where valid_until is not null;

create table functions (
  id text primary key,
  database_id text not null references databases on delete cascade,
  name text not null,
  enabled boolean not null default true,
  visibility text not null check (visibility in ('public', 'private')),
  version_id text not null,
  cron_schedule text,
  -- When it runs next. Whoever moves it on owns the tick: one run however many processes serve.
  next_tick_at timestamptz,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now(),
  unique (database_id, name),
  check ((cron_schedule is null) = (next_tick_at is null))
);
create index on functions (next_tick_at) where next_tick_at is not null;

-- Compiled code, by its SHA-256: a version never changes under its callers.
create table function_code (
  database_id text not null references databases on delete cascade,
  digest text not null,
  format text not null check (format in ('cjs', 'esm')),
  code bytea not null,
  primary key (database_id, digest)
);

create table function_versions (
  id text primary key,
  function_id text not null references functions on delete cascade,
  database_id text not null,
  version integer not null,
  entrypoint text not null,
  bundle_ref text not null,
  bundle_digest text,
  -- null: the bundle could not be reached yet; tried again when the function is invoked
  code_digest text,
  run_as text not null,
  bypass_rls boolean not null,
  timeout_ms integer not null,
  memory_mb integer not null,
  network_allowlist text[] not null,
  fs_read text[] not null,
  fs_write text[] not null,
  secret_bindings text[] not null,
  created_at timestamptz(3) not null default now(),
  unique (function_id, version),
  foreign key (database_id, code_digest) references function_code
);

create table function_runs (
  id text primary key,
  -- Newest first, also within a millisecond.
  number bigint generated always as identity,
  function_id text not null references functions on delete cascade,
  version_id text not null,
  trigger_type text not null,
  status text not null check (status in ('running', 'completed', 'failed', 'timed_out')),
  run_as text not null,
  attempt integer not null default 1,
  idempotency_key text,
  -- The process that runs it: if that is gone, so is the run.
  owner text not null,
  result_json text,
  logs text not null default '',
  created_at timestamptz(3) not null default now(),
  finished_at timestamptz(3),
  check ((status = 'running') = (result_json is null))
) with (fillfactor = 70); -- room for a run's end beside its beginning: no index is touched again
create unique index on function_runs (function_id, idempotency_key) where idempotency_key is not null;
create index on function_runs (function_id, number desc);
create index on function_runs using brin (created_at);

-- Processes that own runs. Each holds an advisory lock while it lives; the unfinished runs of one
-- that is listed here without its lock have ended with it.
create table function_run_owners (id text primary key);

create function notify_function() returns trigger language plpgsql as $$
begin
  perform pg_notify('functions', new.id);
  return null;
end $$;
create trigger notify_function after insert or update of cron_schedule, version_id on functions
  for each row execute function notify_function();
