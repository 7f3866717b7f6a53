-- What a submitter sends: a job and, beside it, its payload.

-- name: insert_pending_job
-- Stores one job with its payload. The id is the caller's: repeating the statement after a lost
-- answer finds the row and changes nothing.
with
job as (
    insert into haulage.jobs (
        id, pipeline, queue, priority, run_at, max_attempts,
        timeout_seconds, start_timeout_seconds, stall_seconds, memory_limit_bytes,
        tags, metadata, submitted_by
    )
    values (
        $1, $2, $3, $4,
        -- A delay counts on the database's clock, never on the caller's.
        coalesce($5::timestamptz, now()) + make_interval(secs => $6),
        $7, $8, $9, $10, $11, $12, $13, $14
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
select id, $15::jsonb from job;
