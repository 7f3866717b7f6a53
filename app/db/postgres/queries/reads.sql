-- Reads of one job; lists with filters are composed elsewhere.

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
    a.error_class, a.error_message, a.traceback, a.cause,
    -- Changes with everything here that can change, and with every milestone.
    to_hex(hashtextextended(row(
        j.status, j.queue, j.priority, j.attempt, j.max_attempts, j.claim_no, j.node_id,
        j.run_at, j.started_at, j.finished_at, j.cancel_requested_at,
        a.pid, a.progress_fraction, a.progress_stage, a.progress_message,
        last_event.id
    )::text, 0)) as version,
    coalesce(last_event.id, 0) as last_event_id,
    j.batch_id::text as batch_id, j.submitted_by
from haulage.jobs j
left join haulage.job_attempts a on a.job_id = j.id and a.claim_no = j.claim_no
left join lateral (
    select max(id) as id from haulage.job_events where job_id = j.id
) last_event on true
where j.id = $1;

-- name: list_milestones
-- The stages that a job entered, oldest first.
select id, attempt, stage, fraction, message, created_at
from haulage.job_events
where job_id = $1 and kind = 'milestone'
order by id;

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
select line_no as number, level::int as level, source, line as text, at
from (
    select id, line_no, level, source, line, at
    from haulage.job_logs
    where job_id = $1
    order by id desc
    limit $2
) last_lines
order by id;
