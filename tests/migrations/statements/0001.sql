-- name: append_logs
-- Lines in their order: instants $3, levels $4, sources $5, texts $6.
with
held as (
    select id, claim_no, attempt
    from haulage.jobs
    where id = $1 and claim_no = $2 and status = 'running'
    for no key update
),
lines as (
    insert into haulage.job_logs (job_id, claim_no, attempt, at, level, source, line)
    select held.id, held.claim_no, held.attempt, l.at, l.level, l.source, l.line
    from held
    cross join unnest($3::timestamptz[], $4::smallint[], $5::text[], $6::text[])
        with ordinality as l (at, level, source, line, position)
    order by l.position
)
select 1 as held from held;

-- name: claim_pending_jobs
-- Gives node $1 at most $2 due jobs, only of the pipelines $3 where that is not null.
with
-- A node whose lease has ended, that drains or is unknown gets nothing: no job may be owned by
-- a node that rescue already looks past.
claimer as (
    select n.id
    from haulage.nodes n
    where n.id = $1
      and n.state = 'active'
      and n.heartbeat_at + make_interval(secs => n.lease_seconds) > now()
),
-- Fixes the set before anything is written: an `in (select ... limit n)` can be run again by a
-- nested loop and claim more than n. Locked rows belong to another claimer and are passed over.
due as materialized (
    select j.id
    from haulage.jobs j
    where j.status = 'pending'
      and j.run_at <= now()
      and ($3::text[] is null or j.pipeline = any ($3))
      and exists (select from claimer)
      and not exists (
          select from haulage.queues q where q.name = j.queue and q.is_paused
      )
    order by j.priority desc, j.run_at, j.id
    limit $2
    for update of j skip locked
),
-- claim_no is the fencing number: it only grows, whatever becomes of the job.
claimed as (
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
    c.started_at as claimed_at,
    -- Large payloads do not pass through the scheduler; their worker reads them.
    case when octet_length(p.payload::text) <= $4 then p.payload::text end as payload
from claimed c
join haulage.job_payloads p on p.job_id = c.id
order by c.priority desc, c.run_at, c.id;

-- name: count_running_jobs
-- Running jobs of node $1, of all nodes where it is null.
select count(*) as n
from haulage.jobs
where status = 'running' and ($1::uuid is null or node_id = $1);

-- name: deregister_node
-- The node is gone for good; what it still runs is lost.
update haulage.nodes set state = 'stopped', stopped_at = now() where id = $1;

-- name: drain_node
-- The node claims nothing any more.
update haulage.nodes set state = 'draining' where id = $1 and state = 'active';

-- name: find_lost_job
-- Whether a claim runs on a lost node. A lease that has ended is never renewed, nor does a stopped
-- node come back: what this finds stays true until the claim is ended.
select 1 as held
from haulage.jobs j
where j.id = $1 and j.claim_no = $2 and j.status = 'running'
  and not exists (
      select
      from haulage.nodes n
      where n.id = j.node_id
        and n.state <> 'stopped'
        and n.heartbeat_at + make_interval(secs => n.lease_seconds) > now()
  );

-- name: finish_job
-- The end of an attempt, all of it or nothing: status, attempt row, result, event.
with
ended as (
    update haulage.jobs
    set status = $3,
        attempt = attempt + $4,
        node_losses = node_losses + $5,
        run_at = case when $3 = 'pending' then now() + make_interval(secs => $6) else run_at end,
        finished_at = case when $3 <> 'pending' then now() end
    where id = $1 and claim_no = $2 and status = 'running'
    returning id, claim_no, attempt, status
),
-- The attempt keeps the number under which it ran; a refund concerns the job's count only.
closed as (
    update haulage.job_attempts a
    set ended_at = now(),
        outcome = $7,
        cause = $8,
        exit_code = $9,
        signal = $10,
        error_class = $11,
        error_message = $12,
        traceback = $13,
        peak_memory_bytes = $14,
        cpu_seconds = $15,
        progress_fraction = case when $7 = 'completed' then 1 else progress_fraction end
    from ended
    where a.job_id = ended.id and a.claim_no = ended.claim_no
    returning a.attempt
),
-- A retried job may have left a result of an earlier life.
stored as (
    insert into haulage.job_results (job_id, claim_no, result)
    select id, claim_no, $16::jsonb from ended where $16::text is not null
    on conflict (job_id) do update
    set claim_no = excluded.claim_no, result = excluded.result, created_at = now()
),
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage, message)
    select ended.id, ended.claim_no, closed.attempt, 'status', ended.status, $12
    from ended cross join closed
)
select 1 as held from ended;

-- name: get_job
-- A job with the state of its latest attempt.
select
    j.id::text as id, j.status, j.pipeline, j.queue, j.priority::int as priority,
    j.attempt, j.max_attempts, j.claim_no, j.node_losses,
    j.node_id::text as node_id, a.pid, j.timeout_seconds,
    j.tags, j.metadata::text as metadata,
    j.created_at, j.run_at, j.started_at, j.finished_at, j.cancel_requested_at,
    a.progress_fraction, a.progress_stage, a.progress_message,
    a.error_class, a.error_message, a.traceback, a.cause
from haulage.jobs j
left join haulage.job_attempts a on a.job_id = j.id and a.claim_no = j.claim_no
where j.id = $1;

-- name: get_result
-- Whether the job exists, and its result as stored.
select r.result::text as result
from haulage.jobs j
left join haulage.job_results r on r.job_id = j.id
where j.id = $1;

-- name: insert_pending_job
-- Stores one job with its payload. The id is the caller's: repeating the statement after a lost
-- answer finds the row and changes nothing.
with
job as (
    insert into haulage.jobs (
        id, pipeline, queue, priority, run_at, max_attempts, timeout_seconds,
        tags, metadata, submitted_by
    )
    values (
        $1, $2, $3, $4,
        -- A delay counts on the database's clock, never on the caller's.
        coalesce($5::timestamptz, now()) + make_interval(secs => $6),
        $7, $8, $9, $10, $11
    )
    on conflict (id) do nothing
    returning id
),
-- The submission is the first line of the job's story.
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
    select id, 0, 0, 'status', 'pending' from job
)
insert into haulage.job_payloads (job_id, payload)
select id, $12::jsonb from job;

-- name: list_attempts
-- Every claim of a job, oldest first.
select
    claim_no, attempt, node_id::text as node_id, pid, started_at, ended_at, outcome, cause,
    exit_code, signal, error_class, error_message, traceback, peak_memory_bytes, cpu_seconds
from haulage.job_attempts
where job_id = $1
order by claim_no;

-- name: list_logs
-- The last $2 lines of a job's log, oldest first.
select level::int as level, source, line as text, at
from (
    select id, level, source, line, at
    from haulage.job_logs
    where job_id = $1
    order by id desc
    limit $2
) last_lines
order by id;

-- name: list_lost_jobs
-- Running jobs, at most $1, whose node can no longer speak for them.
select
    j.id::text as id, j.claim_no, j.node_id::text as node_id, j.attempt, j.max_attempts,
    j.node_losses, j.timeout_seconds,
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

-- name: list_milestones
-- The stages that a job entered, oldest first.
select id, attempt, stage, fraction, message, created_at
from haulage.job_events
where job_id = $1 and kind = 'milestone'
order by id;

-- name: list_running_jobs
-- What the database believes to run on node $1.
select
    id::text as id, claim_no, node_id::text as node_id, attempt, max_attempts, node_losses,
    timeout_seconds,
    extract(epoch from now() - started_at)::float8 as run_seconds,
    cancel_requested_at is not null as cancel_requested
from haulage.jobs
where status = 'running' and node_id = $1;

-- name: load_checkpoint
-- The intermediate result of stage $2, whichever attempt saved it.
select data::text as data
from haulage.job_checkpoints
where job_id = $1 and stage = $2;

-- name: load_payload
-- The payload of a claimed job, for workers whose payload was too large to cross with the claim.
select p.payload::text as payload
from haulage.jobs j
join haulage.job_payloads p on p.job_id = j.id
where j.id = $1 and j.claim_no = $2 and j.status = 'running';

-- name: register_node
-- A new node $1; its lease runs from now.
insert into haulage.nodes (id, name, pid, version, capacity, lease_seconds)
values ($1, $2, $3, $4, $5, $6);

-- name: renew_node
-- Extends the lease, but never one that has ended: other nodes may already rescue its jobs.
update haulage.nodes
set heartbeat_at = now()
where id = $1
  and state <> 'stopped'
  and heartbeat_at + make_interval(secs => lease_seconds) > now()
returning 1 as held;

-- name: report_progress
-- Latest progress of the attempt; where $6 is true and the stage is new it is also kept for good.
with
held as (
    select j.id, j.claim_no, j.attempt, a.progress_stage
    from haulage.jobs j
    join haulage.job_attempts a on a.job_id = j.id and a.claim_no = j.claim_no
    where j.id = $1 and j.claim_no = $2 and j.status = 'running'
    for no key update of j
),
-- A report that is repeated because its answer got lost finds its stage entered already.
milestone as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage, fraction, message)
    select id, claim_no, attempt, 'milestone', $4, $3, $5
    from held
    where $6 and progress_stage is distinct from $4
)
update haulage.job_attempts a
set progress_fraction = $3,
    progress_stage = $4,
    progress_message = $5,
    progress_at = now()
from held
where a.job_id = held.id and a.claim_no = held.claim_no
returning 1 as held;

-- name: report_started
-- The worker process $3 is up and holds the claim.
with held as (
    select id, claim_no
    from haulage.jobs
    where id = $1 and claim_no = $2 and status = 'running'
    for no key update
)
update haulage.job_attempts a
set pid = $3
from held
where a.job_id = held.id and a.claim_no = held.claim_no
returning 1 as held;

-- name: save_checkpoint
-- The intermediate result $4 of stage $3 replaces an earlier one.
with
held as (
    select id, claim_no
    from haulage.jobs
    where id = $1 and claim_no = $2 and status = 'running'
    for no key update
),
saved as (
    insert into haulage.job_checkpoints (job_id, stage, claim_no, data)
    select id, $3, claim_no, $4::jsonb from held
    on conflict (job_id, stage) do update
    set claim_no = excluded.claim_no, data = excluded.data, saved_at = now()
)
select 1 as held from held;
