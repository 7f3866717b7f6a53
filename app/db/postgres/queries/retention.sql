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
-- Tested again on the newest version: who was retried meanwhile has begun a new life.
gone as (
    delete from haulage.jobs j using old where j.id = old.id and j.status = $1 returning j.id
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
    delete from haulage.datasets d using old where d.id = old.id returning d.id
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
    delete from haulage.call_cache c using old where c.key = old.key returning c.key
)
select count(*) as n from gone;

-- name: prune_nodes
-- At most $2 nodes that were last heard of more than $1 seconds ago and of which no job runs.
with
turn as materialized (select pg_try_advisory_xact_lock(7521421961321608302) as is_ours),
old as materialized (
    select n.id
    from haulage.nodes n
    where greatest(n.heartbeat_at + make_interval(secs => n.lease_seconds), n.stopped_at)
        < now() - make_interval(secs => $1)
      and (select is_ours from turn)
      and not exists (
          select from haulage.jobs j where j.status = 'running' and j.node_id = n.id
      )
    limit $2
    for update skip locked
),
gone as (
    delete from haulage.nodes n using old where n.id = old.id returning n.id
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
    delete from haulage.deleted_jobs t using old where t.id = old.id returning t.id
)
select count(*) as n from gone;
