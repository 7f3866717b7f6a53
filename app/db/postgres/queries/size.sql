-- What an operator asks about size and health. Figures of the catalogue and of the statistics: nothing
-- here reads a row of a table.

-- name: list_table_sizes
-- Our tables, the largest first; row counts are the server's estimates.
select
    c.relname::text as name,
    s.n_live_tup as rows,
    s.n_dead_tup as dead_rows,
    -- With its maps, without its TOAST table.
    pg_table_size(c.oid) - coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0)
        as table_bytes,
    pg_indexes_size(c.oid) as index_bytes,
    coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0) as toast_bytes,
    greatest(s.last_vacuum, s.last_autovacuum) as vacuumed_at,
    greatest(s.last_analyze, s.last_autoanalyze) as analyzed_at
from pg_class c
join pg_stat_all_tables s on s.relid = c.oid
where c.relnamespace = to_regnamespace('haulage') and c.relkind = 'r'
order by pg_total_relation_size(c.oid) desc, c.relname;

-- name: list_index_sizes
-- Our indexes with what they would take newly built, the most to be gained first.
--
-- The estimate counts what a B-tree page holds: 8 kB without its header (24 bytes) and the tree's own
-- part (16), filled to 90 %; each entry has a line pointer (4), a header (8) and the columns' average
-- widths, rounded up to 8. So does btree_bloat.sql of ioguix/pgsql-bloat-estimation. Entries that
-- share a value are stored once, which the estimate does not know: it tells too little bloat there.
with
entry as (
    select
        i.indexrelid,
        -- Unknown where one of the widths is: the table was never analyzed.
        case when bool_and(w.avg_width is not null) then sum(w.avg_width) end as width
    from pg_index i
    join pg_class t on t.oid = i.indrelid and t.relnamespace = to_regnamespace('haulage')
    join pg_class c on c.oid = i.indexrelid
    join pg_attribute a on a.attrelid = i.indexrelid
    left join pg_attribute source
        on source.attrelid = i.indrelid and source.attnum = i.indkey[a.attnum - 1]
    -- Expressions have statistics under the index's own name.
    left join pg_stats w
        on w.schemaname = 'haulage'
        and (w.tablename, w.attname) in (
            (t.relname, source.attname),
            (c.relname, a.attname)
        )
    group by i.indexrelid
),
size as (
    select
        c.oid,
        t.relname::text as table_name,
        c.relname::text as name,
        i.indisvalid as is_valid,
        pg_relation_size(c.oid) as bytes,
        -- The first page is the tree's own. What operators have added may be no B-tree.
        case when m.amname = 'btree' then
            8192 * (1 + ceil(
                nullif(c.reltuples, -1) * (4 + 8 * ceil((8 + e.width) / 8.0))
                / ((8192 - 24 - 16) * 0.9)
            ))::bigint
        end as expected_bytes
    from entry e
    join pg_index i on i.indexrelid = e.indexrelid
    join pg_class c on c.oid = i.indexrelid
    join pg_am m on m.oid = c.relam
    join pg_class t on t.oid = i.indrelid
)
select
    table_name, name, is_valid, bytes, expected_bytes,
    -- Not `greatest` alone: for it nothing known would be nothing to be gained.
    case when expected_bytes is not null then greatest(0, bytes - expected_bytes) end as bloat_bytes
from size
order by bloat_bytes desc nulls last, name;

-- name: list_snapshots
-- Who keeps dead rows of this database from being cleaned up, the oldest first.
select
    'session' as kind,
    a.application_name as name,
    a.pid,
    a.usename::text as owner,
    a.state,
    a.xact_start as since,
    a.query_start as query_started_at,
    extract(epoch from now() - a.xact_start)::float8 as age_seconds,
    -- A transaction that wrote holds its own number, whatever it still reads.
    greatest(age(a.backend_xmin), age(a.backend_xid)) as age_transactions,
    left(a.query, 200) as query
from pg_stat_activity a
where (a.backend_xmin is not null or a.backend_xid is not null)
  and a.pid <> pg_backend_pid()
  -- What a standby holds back belongs to no database.
  and (a.datname = current_database() or a.datid is null or a.datid = 0)
  and a.backend_type <> 'autovacuum worker'
union all
select
    'prepared transaction', p.gid, null, p.owner::text, 'prepared', p.prepared, null,
    extract(epoch from now() - p.prepared)::float8, age(p.transaction), null
from pg_prepared_xacts p
where p.database = current_database()
union all
select
    'replication slot', s.slot_name::text, s.active_pid, null,
    case when s.active then 'active' else 'inactive' end, null, null,
    null, age(s.xmin), null
from pg_replication_slots s
where s.xmin is not null
order by age_transactions desc, since;
