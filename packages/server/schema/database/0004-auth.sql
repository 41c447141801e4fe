-- Who the end user is, for row-level security policies. The browser data plane and functions set
-- `request.jwt.claims` (the verified token's claims) and `request.jwt.claim.sub` (the subject as
-- the database's auth configuration defines it); elsewhere these answer null.
create schema auth;
grant usage on schema auth to public;

create function auth.jwt() returns jsonb
  language sql stable parallel safe
  return nullif(current_setting('request.jwt.claims', true), '')::jsonb;

create function auth.uid() returns text
  language sql stable parallel safe
  return coalesce(
    nullif(current_setting('request.jwt.claim.sub', true), ''),
    auth.jwt() ->> 'sub'
  );

create function auth.role() returns text
  language sql stable parallel safe
  return coalesce(auth.jwt() ->> 'role', current_user::text);
