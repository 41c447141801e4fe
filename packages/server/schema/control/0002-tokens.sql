create table tokens (
  id text primary key,
  account_key bigint not null references accounts on delete cascade,
  name text not null,
  value_hash bytea not null unique,
  -- null: the whole account; otherwise {"<database id>": "ro" | "rw"}
  scope jsonb,
  created_at timestamptz(3) not null default now(),
  expires_at timestamptz(3) not null
);
create index on tokens (account_key);

create function notify_token() returns trigger language plpgsql as $$
begin
  perform pg_notify('credentials', encode(old.value_hash, 'hex'));
  return null;
end $$;
create trigger notify_token after update or delete on tokens
  for each row execute function notify_token();
