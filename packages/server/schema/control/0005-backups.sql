-- Work that outlives a request. Each piece belongs to the one process that holds its data directory
-- (`home`), so nobody competes for it; it is removed when it is done.
create table jobs (
  key bigint generated always as identity primary key,
  home text not null,
  kind text not null,
  -- What it is about: a backup, a restore
  subject text not null,
  -- Times it was begun; a piece of work that takes the service down with it is given up
  attempts integer not null default 0,
  run_at timestamptz not null default now(),
  created_at timestamptz(3) not null default now(),
  unique (kind, subject)
);
create index on jobs (home, run_at);

create function notify_job() returns trigger language plpgsql as $$
begin
  perform pg_notify('jobs', new.home);
  return null;
end $$;
create trigger notify_job after insert on jobs for each row execute function notify_job();

create table backups (
  id text primary key,
  database_id text not null references databases on delete cascade,
  home text not null,
  state text not null default 'creating' check (state in ('creating', 'ready', 'failed')),
  label text,
  -- Made by the schedule; those are removed when they are old
  scheduled boolean not null default false,
  size_bytes bigint,
  sha256 text,
  error text,
  created_at timestamptz(3) not null default now(),
  completed_at timestamptz(3)
);
create index on backups (database_id, created_at desc);

-- However a backup's row goes, what is stored of it goes too.
create function remove_backup_object() returns trigger language plpgsql as $$
begin
  insert into jobs (home, kind, subject) values (old.home, 'remove-backup', old.id)
    on conflict do nothing;
  return null;
end $$;
create trigger remove_backup_object after delete on backups
  for each row execute function remove_backup_object();

create table restores (
  id text primary key,
  account_key bigint not null references accounts on delete cascade,
  -- No foreign keys: the record of a restore outlives what it was made of and what it made.
  backup_id text not null,
  database_id text,
  target_name text not null,
  state text not null default 'restoring' check (state in ('restoring', 'ready', 'failed')),
  idempotency_key text,
  error text,
  created_at timestamptz(3) not null default now(),
  completed_at timestamptz(3),
  unique (account_key, idempotency_key)
);
create unique index on restores (account_key, target_name) where state = 'restoring';
