-- Lets a role read the views of the schema reporting, and nothing else of Haulage.
grant usage on schema reporting to {reader};
grant select on all tables in schema reporting to {reader};
-- Views of later revisions too: they are made by the role that made these, whoever runs this.
do $views$ begin
    execute format(
        'alter default privileges for role %I in schema reporting grant select on tables to %I',
        (select viewowner from pg_views where (schemaname, viewname) = ('reporting', 'jobs')),
        {reader_text}
    );
end $views$;
-- What its sessions begin with. They may change it, but have no right to write anything here.
alter role {reader} in database {database} set default_transaction_read_only = on;
-- A report that goes on for ever, or a transaction left open, would keep dead rows from going.
alter role {reader} in database {database} set statement_timeout = {timeout};
alter role {reader} in database {database} set idle_in_transaction_session_timeout = {timeout};
-- A report that takes several CPUs is sooner done, and holds up whoever claims jobs meanwhile.
alter role {reader} in database {database} set max_parallel_workers_per_gather = 0;
