-- What a submitter sends: jobs and, beside them, their payloads.

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
        tags, metadata, submitted_by, idempotency_key, payload_hash, dataset_id, batch_id
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
        given.metadata::jsonb, given.submitted_by, given.idempotency_key, given.payload_hash,
        given.dataset_id, $2
    from bound, unnest(
        $3::uuid[], $4::text[], $5::text[], $6::int2[], $7::timestamptz[], $8::float8[],
        $9::int4[], $10::float8[], $11::float8[], $12::float8[], $13::int8[], $14::text[],
        $15::text[], $16::text[], $17::text[], $18::bytea[], $19::uuid[]
    ) as given (
        id, pipeline, queue, priority, run_at, delay_seconds,
        max_attempts, timeout_seconds, start_timeout_seconds, stall_seconds, memory_limit_bytes,
        tags, metadata, submitted_by, idempotency_key, payload_hash, dataset_id
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
    join unnest($3::uuid[], $20::text[]) as given (id, payload) using (id)
)
select id from job;

-- name: find_jobs_by_key
-- The jobs that idempotency keys have made; a statement of its own after the insert that found the
-- keys taken: that one's snapshot may be older than what it waited for.
select job.submitted_by, job.idempotency_key, job.id, job.payload_hash, job.batch_id
from unnest($1::text[], $2::text[]) as asked (submitted_by, idempotency_key)
join haulage.jobs as job using (submitted_by, idempotency_key)
where job.idempotency_key is not null;

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
