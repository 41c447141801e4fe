-- An account keeps its key when it is claimed; only its public id changes (anon_… to cus_…).
create table accounts (
  key bigint generated always as identity primary key,
  id text not null unique,
  -- Set for ever on accounts that began as anonymous ones: sessions and refreshes name it.
  anonymous_id text unique,
  anonymous_secret_hash bytea,
  email text,
  -- The identity of a verified customer: issuer and subject of its ID tokens.
  identity_issuer text,
  identity_subject text,
  created_at timestamptz(3) not null default now(),
  unique (identity_issuer, identity_subject),
  check ((identity_issuer is null) = (identity_subject is null)),
  check ((identity_issuer is null) = (email is null))
);

-- Keys that sign session and connect tokens; the newest one signs, all of them verify.
create table signing_keys (
  id text primary key,
  public_jwk jsonb not null,
  private_jwk_sealed bytea not null,
  created_at timestamptz(3) not null default now()
);

-- Answers kept for callers that try again.
create table idempotent_answers (
  account_key bigint not null references accounts on delete cascade,
  operation text not null,
  idempotency_key text not null,
  request_hash bytea not null,
  answer jsonb not null,
  created_at timestamptz(3) not null default now(),
  primary key (account_key, operation, idempotency_key)
);

-- Caches in the processes that share this database hear of every change.
create function notify_account() returns trigger language plpgsql as $$
begin
  perform pg_notify('accounts', old.key::text);
  return null;
end $$;
create trigger notify_account after update or delete on accounts
  for each row execute function notify_account();
