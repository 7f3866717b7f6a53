-- What those ask who watch and manage; lists of jobs with filters are composed elsewhere.

-- name: is_deleted
-- Whether a job is known to have been deleted.
select 1 as deleted from haulage.deleted_jobs where id = $1;

-- name: get_payload
-- The payload of a job.
select payload::text as payload from haulage.job_payloads where job_id = $1;

-- name: list_checkpoint_stages
-- The stages that a job has a checkpoint of, in the order of saving.
select stage from haulage.job_checkpoints where job_id = $1 order by saved_at, stage;

-- name: delete_job
-- Removes a job that has ended, with everything that belongs to it; nothing where it has not.
with
gone as (
    delete from haulage.jobs
    where id = $1 and status in ('completed', 'failed', 'cancelled')
    returning id
),
noted as (
    insert into haulage.deleted_jobs (id) select id from gone
    on conflict (id) do update set deleted_at = now()
)
select 1 as gone from gone;

-- name: list_queues
-- At most $2 queues after name $1 that have jobs to do or were paused, by name. Ended jobs are not
-- looked at, and of those that wait in a queue $3 and one more at most.
with recursive
-- From name to name in the index, however many jobs have each of them.
waiting (queue) as (
    (
        select queue from haulage.jobs where status = 'pending' and queue > $1
        order by queue limit 1
    )
    union all
    select (
        select queue from haulage.jobs where status = 'pending' and queue > w.queue
        order by queue limit 1
    )
    from waiting w
    where w.queue is not null
),
-- As many as nodes have room for.
busy as (
    select queue, count(*) as running from haulage.jobs where status = 'running' group by queue
),
named (name) as (
    (select name from haulage.queues where name > $1 order by name limit $2)
    union
    (select queue from waiting where queue is not null limit $2)
    union
    select queue from busy where queue > $1
    order by 1
    limit $2
)
select
    name, coalesce(q.is_paused, false) as is_paused,
    w.pending, w.scheduled,
    coalesce(b.running, 0) as running,
    w.seconds as oldest_pending_seconds,
    w.is_exact
from named
left join haulage.queues q using (name)
left join busy b on b.queue = named.name
-- In the order of claims, which an index has.
cross join lateral (
    select
        count(*) filter (where place <= $3) as pending,
        count(*) filter (where place <= $3 and run_at > now()) as scheduled,
        extract(epoch from
            now() - min(run_at) filter (where place <= $3 and run_at <= now())
        )::float8 as seconds,
        count(*) <= $3 as is_exact
    from (
        select run_at, row_number() over () as place
        from (
            select run_at
            from haulage.jobs
            where status = 'pending' and queue = named.name
            order by priority desc, run_at, id
            limit $3::bigint + 1
        ) next
    ) placed
) w
order by name;

-- name: pause_queue
-- Nothing of queue $1 is claimed any more.
insert into haulage.queues as q (name, is_paused) values ($1, true)
on conflict (name) do update set is_paused = true, updated_at = now() where not q.is_paused;

-- name: resume_queue
-- Queue $1 is claimed from again.
update haulage.queues set is_paused = false, updated_at = now() where name = $1 and is_paused;

-- name: list_nodes
-- At most $2 nodes, node $1 alone where it is not null; those that live first, the newest first.
-- Where they are not null only those behind node $4, which lived or not ($3).
select
    n.id::text as id, n.name, n.pid, n.version,
    case when n.state = 'stopped' or n.has_lease then n.state else 'lost' end as state,
    n.capacity,
    (
        select count(*) from haulage.jobs j where j.status = 'running' and j.node_id = n.id
    ) as running,
    n.lease_seconds,
    extract(epoch from now() - n.heartbeat_at)::float8 as heartbeat_seconds,
    n.started_at, n.stopped_at
from (
    select
        id, name, pid, version, state, capacity, lease_seconds, heartbeat_at, started_at,
        stopped_at,
        heartbeat_at + make_interval(secs => lease_seconds) > now() as has_lease
    from haulage.nodes
    where $1::uuid is null or id = $1
) n
where $3::boolean is null or ((n.state <> 'stopped' and n.has_lease), n.id) < ($3, $4::uuid)
order by (n.state <> 'stopped' and n.has_lease) desc, n.id desc
limit $2;

-- name: set_node_state
-- Node $1 becomes 'draining' or 'active' ($2); nothing where it has stopped or is lost.
update haulage.nodes
set state = $2
where id = $1
  and state <> 'stopped'
  and heartbeat_at + make_interval(secs => lease_seconds) > now()
returning 1 as held;
