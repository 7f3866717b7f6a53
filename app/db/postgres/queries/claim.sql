-- Claiming: the one place where a job gets an owner.

-- name: claim_pending_jobs
-- Gives node $1 at most $2 due jobs, only of the pipelines $3 where that is not null.
with recursive
-- A node whose lease has ended, that drains or is unknown gets nothing: no job may be owned by
-- a node that rescue already looks past.
claimer as (
    select n.id
    from haulage.nodes n
    where n.id = $1
      and n.state = 'active'
      and n.heartbeat_at + make_interval(secs => n.lease_seconds) > now()
),
paused as materialized (select name from haulage.queues where is_paused),
-- The usual case, where nothing is paused: one walk over all queues that stops at the limit.
-- Fixes the set before anything is written: an `in (select ... limit n)` can be run again by a
-- nested loop and claim more than n. Locked rows belong to another claimer and are passed over.
due as materialized (
    select j.id
    from haulage.jobs j
    where j.status = 'pending'
      and j.run_at <= now()
      and ($3::text[] is null or j.pipeline = any ($3))
      and exists (select from claimer)
      and not exists (select from paused)
    order by j.priority desc, j.run_at, j.id
    limit $2
    for update of j skip locked
),
-- Where something is paused that walk would read all that waits there, 1.5 us a row: queue by queue
-- instead. The names, one step of the index each.
waiting as (
    (
        select j.queue
        from haulage.jobs j
        where j.status = 'pending' and exists (select from claimer) and exists (select from paused)
        order by j.queue
        limit 1
    )
    union all
    select (
        select j.queue
        from haulage.jobs j
        where j.status = 'pending' and j.queue > w.queue
        order by j.queue
        limit 1
    )
    from waiting w
    where w.queue is not null
),
-- The first of each queue that is not held up. Not locked, so some more than are wanted: others may
-- hold a hundred of them at this moment.
candidates as materialized (
    select first.id, first.priority, first.run_at
    from waiting w
    cross join lateral (
        select j.id, j.priority, j.run_at
        from haulage.jobs j
        where j.status = 'pending'
          and j.queue = w.queue
          and j.run_at <= now()
          and ($3::text[] is null or j.pipeline = any ($3))
        order by j.priority desc, j.run_at, j.id
        limit $2 + 100
    ) first
    where w.queue not in (select name from paused)
    order by first.priority desc, first.run_at, first.id
    limit $2 + 100
),
-- One by one in that order, until there are enough. By key, where a join might read the table.
due_beside as materialized (
    select locked.id
    from candidates c
    cross join lateral (
        select j.id from haulage.jobs j where j.id = c.id and j.status = 'pending'
        for update skip locked
    ) locked
    limit $2
),
-- claim_no is the fencing number: it only grows, whatever becomes of the job.
claimed_due as (
    update haulage.jobs j
    set status = 'running',
        claim_no = j.claim_no + 1,
        attempt = j.attempt + 1,
        node_id = $1,
        started_at = now(),
        finished_at = null
    from due
    where j.id = due.id
    returning j.*
),
-- An update of its own: for both sets together the planner would read small tables, and keep the
-- plan when they grow.
claimed_beside as (
    update haulage.jobs j
    set status = 'running',
        claim_no = j.claim_no + 1,
        attempt = j.attempt + 1,
        node_id = $1,
        started_at = now(),
        finished_at = null
    from due_beside
    where j.id = due_beside.id
    returning j.*
),
claimed as (select c.* from claimed_due c union all select b.* from claimed_beside b),
-- The attempt exists from the claim on, so a worker that never comes up leaves a trace.
opened as (
    insert into haulage.job_attempts (job_id, claim_no, attempt, node_id)
    select id, claim_no, attempt, node_id from claimed
),
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
    select id, claim_no, attempt, 'status', 'running' from claimed
)
select
    c.id::text as id,
    c.claim_no,
    c.pipeline,
    c.attempt,
    c.max_attempts,
    c.node_losses,
    c.timeout_seconds,
    c.start_timeout_seconds,
    c.stall_seconds,
    c.memory_limit_bytes,
    c.started_at as claimed_at,
    -- Large payloads do not pass through the scheduler; their worker reads them.
    (
        select case when octet_length(p.payload::text) <= $4 then p.payload::text end
        from haulage.job_payloads p
        where p.job_id = c.id
    ) as payload
from claimed c
order by c.priority desc, c.run_at, c.id;

-- name: count_running_jobs
-- Running jobs of node $1, of all nodes where it is null.
select count(*) as n
from haulage.jobs
where status = 'running' and ($1::uuid is null or node_id = $1);

-- name: list_running_jobs
-- What the database believes to run on node $1.
select
    id::text as id, claim_no, node_id::text as node_id, attempt, max_attempts, node_losses,
    extract(epoch from now() - started_at)::float8 as run_seconds,
    cancel_requested_at is not null as cancel_requested
from haulage.jobs
where status = 'running' and node_id = $1;

-- name: list_lost_jobs
-- Running jobs, at most $1, whose node can no longer speak for them.
select
    j.id::text as id, j.claim_no, j.node_id::text as node_id, j.attempt, j.max_attempts,
    j.node_losses,
    extract(epoch from now() - j.started_at)::float8 as run_seconds,
    j.cancel_requested_at is not null as cancel_requested
from haulage.jobs j
where j.status = 'running'
  and not exists (
      select
      from haulage.nodes n
      where n.id = j.node_id
        and n.state <> 'stopped'
        and n.heartbeat_at + make_interval(secs => n.lease_seconds) > now()
  )
order by j.started_at
limit $1;
