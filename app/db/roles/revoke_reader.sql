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
