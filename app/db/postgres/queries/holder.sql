-- What the holder of a claim writes. Each statement tests (job, claim_no, running) on the job's
-- row under its lock: the loser of a claim changes nothing, and events of one job commit in the
-- order of their ids. Each returns one row where the claim holds, none where it is lost.

-- name: load_payload
-- The payload of a claimed job, for workers whose payload was too large to cross with the claim.
select p.payload::text as payload
from haulage.jobs j
join haulage.job_payloads p on p.job_id = j.id
where j.id = $1 and j.claim_no = $2 and j.status = 'running';

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

-- name: load_checkpoint
-- The intermediate result of stage $2, whichever attempt saved it.
select data::text as data
from haulage.job_checkpoints
where job_id = $1 and stage = $2;

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
        run_at = case when $3 = 'pending' and cancel_requested_at is null
            then now() + make_interval(secs => $6) else run_at end,
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
),
-- Nothing where no endpoint is told of it: a look at an empty table.
told as (
    insert into haulage.webhook_deliveries (id, job_id, webhook_id, url, event)
    select gen_random_uuid(), ended.id, w.id, w.url, 'job.' || ended.status
    from ended
    join haulage.webhooks w on w.is_active and 'job.' || ended.status = any (w.events)
)
select 1 as held from ended;

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
