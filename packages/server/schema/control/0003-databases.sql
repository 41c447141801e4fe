create table databases (
  id text primary key,
  account_key bigint not null references accounts on delete cascade,
  name text not null,
  region text not null,
  project_id text,
  -- No foreign key: a branch outlives its parent.
  parent_database_id text,
  -- Which data directory holds its instance.
  home text not null,
  admin_password_sealed bytea not null,
  -- A reset that was begun; finished at start-up if the service died in between.
  next_admin_password_sealed bytea,
  -- False while it is being made and once its deletion has begun; such rows end at start-up.
  ready boolean not null default false,
  created_at timestamptz(3) not null default now(),
  unique (account_key, name)
);
create index on databases (parent_database_id);
create index on databases (home);

create function notify_database() returns trigger language plpgsql as $$
begin
  perform pg_notify('databases', old.id);
  return null;
end $$;
create trigger notify_database after update or delete on databases
  for each row execute function notify_database();
