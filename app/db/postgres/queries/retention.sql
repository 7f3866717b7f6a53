-- Letting go of what is done with: small batches, the oldest first. One process at a time has its
-- turn, by a lock that ends with its transaction; what others hold is passed over.

-- name: prune_jobs
-- At most $3 jobs that ended as $1 more than $2 seconds ago, with everything that belongs to them.
with
turn as materialized (select pg_try_advisory_xact_lock(7521421961321608302) as is_ours),
old as materialized (
    select j.id
    from haulage.jobs j
    where j.status = $1
      and j.finished_at < now() - make_interval(secs => $2)
      and (select is_ours from turn)
    order by j.finished_at
    limit $3
    for update skip locked
),
-- By key, where a join might read the whole table.
gone as (
    delete from haulage.jobs where id = any (array(select id from old)) returning id
),
noted as (
    insert into haulage.deleted_jobs (id) select id from gone
    on conflict (id) do update set deleted_at = now()
)
select count(*) as n from gone;

-- name: prune_datasets
-- At most $2 datasets that were stored more than $1 seconds ago and that no job names.
with
turn as materialized (select pg_try_advisory_xact_lock(7521421961321608302) as is_ours),
old as materialized (
    select d.id
    from haulage.datasets d
    where d.created_at < now() - make_interval(secs => $1)
      and (select is_ours from turn)
      and not exists (select from haulage.jobs j where j.dataset_id = d.id)
      and not exists (
          select
          from haulage.job_payloads p
          where p.payload ? 'dataset' and p.payload #>> '{dataset,id}' = d.id::text
      )
    order by d.created_at
    limit $2
    for update skip locked
),
gone as (
    delete from haulage.datasets where id = any (array(select id from old)) returning id
)
select count(*) as n from gone;

-- name: prune_calls
-- At most $2 answers that were kept more than $1 seconds ago.
with
turn as materialized (select pg_try_advisory_xact_lock(7521421961321608302) as is_ours),
old as materialized (
    select c.key
    from haulage.call_cache c
    where c.created_at < now() - make_interval(secs => $1) and (select is_ours from turn)
    order by c.created_at
    limit $2
    for update skip locked
),
gone as (
    delete from haulage.call_cache where key = any (array(select key from old)) returning key
)
select count(*) as n from gone;

-- name: prune_nodes
-- At most $2 nodes that were last heard of more than $1 seconds ago and of which no job runs.
with
turn as materialized (select pg_try_advisory_xact_lock(7521421961321608302) as is_ours),
old as materialized (
    select n.id
    from haulage.nodes n
    where now() - make_interval(secs => $1) > case
            when n.state = 'stopped' then n.stopped_at
            else n.heartbeat_at + make_interval(secs => n.lease_seconds)
        end
      and (select is_ours from turn)
      and not exists (
          select from haulage.jobs j where j.status = 'running' and j.node_id = n.id
      )
    limit $2
    for update skip locked
),
gone as (
    delete from haulage.nodes where id = any (array(select id from old)) returning id
)
select count(*) as n from gone;

-- name: prune_tombstones
-- At most $2 ids of jobs that were deleted more than $1 seconds ago.
with
turn as materialized (select pg_try_advisory_xact_lock(7521421961321608302) as is_ours),
old as materialized (
    select t.id
    from haulage.deleted_jobs t
    where t.deleted_at < now() - make_interval(secs => $1) and (select is_ours from turn)
    order by t.deleted_at
    limit $2
    for update skip locked
),
gone as (
    delete from haulage.deleted_jobs where id = any (array(select id from old)) returning id
)
select count(*) as n from gone;
