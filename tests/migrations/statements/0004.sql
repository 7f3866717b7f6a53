-- name: append_logs
-- Lines in their order: numbers $3, instants $4, levels $5, sources $6, texts $7. Those that are
-- stored already, since only the answer of an earlier call got lost, are passed over.
with
held as (
    select j.id, j.claim_no, j.attempt, a.last_line_no
    from haulage.jobs j
    join haulage.job_attempts a on a.job_id = j.id and a.claim_no = j.claim_no
    where j.id = $1 and j.claim_no = $2 and j.status = 'running'
    for no key update of j, a
),
lines as (
    insert into haulage.job_logs
        (job_id, claim_no, attempt, line_no, at, level, source, line)
    select held.id, held.claim_no, held.attempt, l.line_no, l.at, l.level, l.source, l.line
    from held
    cross join unnest($3::integer[], $4::timestamptz[], $5::smallint[], $6::text[], $7::text[])
        as l (line_no, at, level, source, line)
    where l.line_no > held.last_line_no
    order by l.line_no
)
update haulage.job_attempts a
set last_line_no = greatest(held.last_line_no, (select max(n) from unnest($3::integer[]) n))
from held
where a.job_id = held.id and a.claim_no = held.claim_no
returning 1 as held;

-- name: cancel_job
-- Cancels a pending job at once and notes the wish where it runs; nothing where it has ended.
with
-- One update, so that a claim or an end that commits meanwhile is seen: PostgreSQL evaluates it
-- again on the row's newest version.
asked as (
    update haulage.jobs
    set status = case when status = 'pending' then 'cancelled' else status end,
        cancel_requested_at = coalesce(cancel_requested_at, now()),
        finished_at = case when status = 'pending' then now() end
    where id = $1 and status in ('pending', 'running')
    returning id, claim_no, attempt, status
),
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
    select id, claim_no, attempt, 'status', status from asked where status = 'cancelled'
)
select status from asked;

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
    c.start_timeout_seconds,
    c.stall_seconds,
    c.memory_limit_bytes,
    c.started_at as claimed_at,
    -- Large payloads do not pass through the scheduler; their worker reads them.
    case when octet_length(p.payload::text) <= $4 then p.payload::text end as payload
from claimed c
join haulage.job_payloads p on p.job_id = c.id
order by c.priority desc, c.run_at, c.id;

-- name: close_dataset
-- The last statement of that transaction, when the rows have been counted.
update haulage.datasets set row_count = $2 where id = $1;

-- name: count_cached_calls
-- The claim's calls of stage $3 and model $4 found $5 answers kept so far.
with
held as (
    select id, claim_no
    from haulage.jobs
    where id = $1 and claim_no = $2 and status = 'running'
    for no key update
),
-- Totals that only grow: repeating one, or writing an older one late, changes nothing.
counted as (
    insert into haulage.usage as u (job_id, claim_no, stage, model, cached_calls)
    select id, claim_no, $3, $4, $5 from held
    on conflict (job_id, claim_no, stage, model) where key is null do update
    set cached_calls = greatest(u.cached_calls, excluded.cached_calls)
)
select 1 as held from held;

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

-- name: find_jobs_by_key
-- The jobs that idempotency keys have made; a statement of its own after the insert that found the
-- keys taken: that one's snapshot may be older than what it waited for.
select job.submitted_by, job.idempotency_key, job.id, job.payload_hash, job.batch_id
from unnest($1::text[], $2::text[]) as asked (submitted_by, idempotency_key)
join haulage.jobs as job using (submitted_by, idempotency_key)
where job.idempotency_key is not null;

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
-- A job that is to be cancelled gets no further attempt. Decided here, under the row's lock: a wish
-- that comes before this statement is seen, one that comes after finds the job pending.
ended as (
    update haulage.jobs
    set status = case when $3 = 'pending' and cancel_requested_at is not null
            then 'cancelled' else $3 end,
        attempt = attempt + $4,
        node_losses = node_losses + $5,
        run_at = case when $3 = 'pending' then now() + make_interval(secs => $6) else run_at end,
        finished_at = case when $3 <> 'pending' or cancel_requested_at is not null then now() end
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

-- name: get_batch
-- How many jobs of a batch are in which status.
select
    batch_id::text as id,
    count(*) as total,
    count(*) filter (where status = 'pending') as pending,
    count(*) filter (where status = 'running') as running,
    count(*) filter (where status = 'completed') as completed,
    count(*) filter (where status = 'failed') as failed,
    count(*) filter (where status = 'cancelled') as cancelled,
    min(created_at) as created_at
from haulage.jobs
where batch_id = $1
group by batch_id;

-- name: get_dataset
-- What is known of a dataset.
select
    id::text as id, name, columns, row_count, detected::text as detected,
    encode(sha256, 'hex') as sha256
from haulage.datasets
where id = $1;

-- name: get_job
-- A job with the state of its latest attempt.
select
    j.id::text as id, j.status, j.pipeline, j.queue, j.priority::int as priority,
    j.attempt, j.max_attempts, j.claim_no, j.node_losses,
    j.node_id::text as node_id, a.pid,
    j.timeout_seconds, j.start_timeout_seconds, j.stall_seconds, j.memory_limit_bytes,
    j.tags, j.metadata::text as metadata,
    j.created_at, j.run_at, j.started_at, j.finished_at, j.cancel_requested_at,
    a.progress_fraction, a.progress_stage, a.progress_message,
    a.error_class, a.error_message, a.traceback, a.cause
from haulage.jobs j
left join haulage.job_attempts a on a.job_id = j.id and a.claim_no = j.claim_no
where j.id = $1;

-- name: get_result
-- Whether the job exists, and its result as stored; that of an earlier life does not count.
select r.result::text as result
from haulage.jobs j
left join haulage.job_results r on r.job_id = j.id and j.status = 'completed'
where j.id = $1;

-- name: get_status
-- The status of a job.
select status from haulage.jobs where id = $1;

-- name: insert_dataset
-- What is known of a dataset; its rows follow in the same transaction.
insert into haulage.datasets (id, name, sha256, detected, columns, row_count)
values ($1, $2, $3, $4::jsonb, $5, 0);

-- name: insert_dataset_row
-- Row $2 of dataset $1.
insert into haulage.dataset_rows (dataset_id, row_no, cells) values ($1, $2, $3);

-- name: insert_pending_jobs
-- Stores jobs with their payloads and gives the ids of those that are new. Ids are the caller's:
-- repeating the statement after a lost answer finds the rows and changes nothing.
with
-- Whoever holds an idempotency key in an open transaction holds up the whole statement: members of
-- a group bound that wait, to go on one by one. It ends with the transaction.
bound as materialized (
    select set_config('lock_timeout', coalesce($1, current_setting('lock_timeout')), true) as wait
),
job as (
    insert into haulage.jobs (
        id, pipeline, queue, priority, run_at, max_attempts,
        timeout_seconds, start_timeout_seconds, stall_seconds, memory_limit_bytes,
        tags, metadata, submitted_by, idempotency_key, payload_hash, batch_id
    )
    select
        given.id, given.pipeline, given.queue, given.priority,
        -- A delay counts on the database's clock, never on the caller's.
        coalesce(given.run_at, now()) + make_interval(secs => given.delay_seconds),
        given.max_attempts,
        given.timeout_seconds, given.start_timeout_seconds, given.stall_seconds,
        given.memory_limit_bytes,
        array(
            select tag.value
            from jsonb_array_elements_text(given.tags::jsonb) with ordinality as tag (value, n)
            order by tag.n
        ),
        given.metadata::jsonb, given.submitted_by, given.idempotency_key, given.payload_hash, $2
    from bound, unnest(
        $3::uuid[], $4::text[], $5::text[], $6::int2[], $7::timestamptz[], $8::float8[],
        $9::int4[], $10::float8[], $11::float8[], $12::float8[], $13::int8[], $14::text[],
        $15::text[], $16::text[], $17::text[], $18::bytea[]
    ) as given (
        id, pipeline, queue, priority, run_at, delay_seconds,
        max_attempts, timeout_seconds, start_timeout_seconds, stall_seconds, memory_limit_bytes,
        tags, metadata, submitted_by, idempotency_key, payload_hash
    )
    where bound.wait is not null
    -- Everybody takes keys in one order, so that two groups with the same ones do not deadlock.
    order by given.submitted_by collate "C", given.idempotency_key collate "C", given.id
    -- Of the id: ours, from a call whose answer got lost. Of the key: somebody was there before,
    -- or is in this statement, too. A rival's open transaction is waited for.
    on conflict do nothing
    returning id
),
-- The submission is the first line of a job's story.
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
    select id, 0, 0, 'status', 'pending' from job
),
payload as (
    insert into haulage.job_payloads (job_id, payload)
    select job.id, given.payload::jsonb
    from job
    join unnest($3::uuid[], $19::text[]) as given (id, payload) using (id)
)
select id from job;

-- name: list_attempts
-- Every claim of a job, oldest first.
select
    claim_no, attempt, node_id::text as node_id, pid, started_at, ended_at, outcome, cause,
    exit_code, signal, error_class, error_message, traceback, peak_memory_bytes, cpu_seconds
from haulage.job_attempts
where job_id = $1
order by claim_no;

-- name: list_dataset_rows
-- At most $4 rows after row $3, and of each the cells at the positions $2, counted from 1.
select
    r.row_no,
    array(
        select r.cells[wanted.position]
        from unnest($2::integer[]) with ordinality as wanted (position, n)
        order by wanted.n
    ) as cells
from haulage.dataset_rows r
where r.dataset_id = $1 and r.row_no > $3
order by r.row_no
limit $4;

-- name: list_datasets_of_file
-- At most $2 datasets that came from the file with sha256 $1, the newest first.
select
    d.id::text as id, d.name, d.columns, d.row_count, d.detected::text as detected,
    encode(d.sha256, 'hex') as sha256
from haulage.datasets d
where d.sha256 = $1
order by d.id desc -- of the table: the index has no texts
limit $2;

-- name: list_logs
-- The last $2 lines of a job's log, oldest first.
select line_no as number, level::int as level, source, line as text, at
from (
    select id, line_no, level, source, line, at
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
    extract(epoch from now() - started_at)::float8 as run_seconds,
    cancel_requested_at is not null as cancel_requested
from haulage.jobs
where status = 'running' and node_id = $1;

-- name: list_usage
-- What a job's calls cost in all its attempts, by stage and model in the order of their first ones.
select
    stage, model,
    sum(calls)::bigint as calls,
    sum(cached_calls)::bigint as cached_calls,
    sum(prompt_tokens)::bigint as prompt_tokens,
    sum(completion_tokens)::bigint as completion_tokens,
    sum(cost)::float8 as cost
from haulage.usage
where job_id = $1
group by stage, model
order by min(id);

-- name: load_call
-- The answer that any job has kept under key $1.
select answer::text as answer from haulage.call_cache where key = $1;

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
    for no key update of j, a
),
-- A report that is repeated because its answer got lost finds its stage entered already: also where
-- the first one had yet to commit, since the attempt's row is read again under its lock.
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

-- name: retry_job
-- Makes an ended job pending again with a fresh budget; nothing where it has not ended.
with
ended as (
    select id, status
    from haulage.jobs
    where id = $1 and status in ('completed', 'failed', 'cancelled')
    for no key update
),
-- claim_no goes on growing: a late writer of an earlier life stays a stranger.
revived as (
    update haulage.jobs j
    set status = 'pending',
        attempt = 0,
        node_losses = 0,
        run_at = now(),
        started_at = null,
        finished_at = null,
        cancel_requested_at = null
    from ended
    where j.id = ended.id
    returning j.id, j.claim_no
),
-- Who completed would only find everything done already.
forgotten as (
    delete from haulage.job_checkpoints c
    using ended
    where c.job_id = ended.id and ended.status = 'completed'
),
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
    select id, claim_no, 0, 'status', 'pending' from revived
)
select 1 as revived from revived;

-- name: save_call
-- Keeps answer $4 under key $3 and counts the call for stage $5 and model $6, both or neither.
with
held as (
    select id, claim_no
    from haulage.jobs
    where id = $1 and claim_no = $2 and status = 'running'
    for no key update
),
-- Of two jobs that asked the same at once the second waits here for the first one's commit; then
-- the first answer stays, since others may have built on it already.
kept as (
    insert into haulage.call_cache (key, answer, model)
    select $3, $4::jsonb, $6 from held
    on conflict (key) do nothing
),
-- By claim and key, not by what became of the answer: who came second paid too, and a call whose
-- answer got lost is repeated without having been paid twice.
paid as (
    insert into haulage.usage
        (job_id, claim_no, key, stage, model, calls, prompt_tokens, completion_tokens, cost)
    select id, claim_no, $3, $5, $6, 1, $7, $8, $9::float8 from held
    on conflict (job_id, claim_no, key) where key is not null do nothing
)
select 1 as held from held;

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

-- name: schema_revision
-- Which revision of the schema this database has.
select version_num from haulage.alembic_version;
