-- Takes back what grant_reader.sql gives; the role itself stays.
do $views$ begin
    execute format(
        'alter default privileges for role %I in schema reporting revoke select on tables from %I',
        (select viewowner from pg_views where (schemaname, viewname) = ('reporting', 'jobs')),
        {reader_text}
    );
end $views$;
revoke select on all tables in schema reporting from {reader};
revoke usage on schema reporting from {reader};
alter role {reader} in database {database} reset default_transaction_read_only;
alter role {reader} in database {database} reset statement_timeout;
alter role {reader} in database {database} reset idle_in_transaction_session_timeout;
alter role {reader} in database {database} reset max_parallel_workers_per_gather;
-- The limit is the role's on the whole server: it stays while another database has it for a reader.
do $limit$ begin
    if not exists (
        select
        from pg_db_role_setting kept
        join pg_roles role on role.oid = kept.setrole
        join pg_database other on other.oid = kept.setdatabase
        where role.rolname = {reader_text}
          and other.datname <> current_database()
          and 'default_transaction_read_only=on' = any (kept.setconfig)
    ) then
        execute format('alter role %I connection limit -1', {reader_text});
    end if;
end $limit$;
