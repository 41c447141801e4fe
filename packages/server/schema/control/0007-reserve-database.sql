-- Takes a name and a place in the quotas with a row that is not ready yet, in one round trip. It is
-- durable together with `ready`; until then the row is nothing to keep.
create function reserve_database(
  new_id text, of_account bigint, new_name text, new_region text, new_project_id text,
  new_parent_id text, new_home text, sealed_password bytea,
  database_limit integer, branch_limit integer,
  out outcome text, out reserved databases
) language plpgsql as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  -- Whoever counts next sees this row.
  perform from accounts where key = of_account for no key update;
  if (select count(*) from databases where account_key = of_account) >= database_limit then
    outcome := 'too many databases';
  elsif new_parent_id is not null
    and (select count(*) from databases where parent_database_id = new_parent_id) >= branch_limit
  then
    outcome := 'too many branches';
  else
    insert into databases
      (id, account_key, name, region, project_id, parent_database_id, home, admin_password_sealed)
    values
      (new_id, of_account, new_name, new_region, new_project_id, new_parent_id, new_home, sealed_password)
    on conflict (account_key, name) do nothing
    returning * into reserved;
    outcome := case when found then 'reserved' else 'name taken' end;
  end if;
end $$;
