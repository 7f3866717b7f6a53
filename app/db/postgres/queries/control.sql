-- What somebody decides about a job from outside: to end it, or to begin again.

-- name: cancel_jobs
-- Of the jobs $1 in a status of $2 cancels the pending at once and notes the wish where they run.
with
-- In the order of ids, so that two of these never wait for each other in a circle; claims pass over
-- what is locked and wait for nobody. A claim or an end that commits meanwhile is seen: what is
-- locked is the row's newest version, and the update evaluates that.
alive as (
    select id
    from haulage.jobs
    where id = any ($1::uuid[]) and status = any ($2) and status in ('pending', 'running')
    order by id
    for no key update
),
asked as (
    update haulage.jobs j
    set status = case when j.status = 'pending' then 'cancelled' else j.status end,
        cancel_requested_at = coalesce(j.cancel_requested_at, now()),
        finished_at = case when j.status = 'pending' then now() end
    from alive
    where j.id = alive.id
    returning j.id, j.claim_no, j.attempt, j.status
),
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
    select id, claim_no, attempt, 'status', status from asked where status = 'cancelled'
),
-- As in finish_job; one that runs is told of when it has ended.
told as (
    insert into haulage.webhook_deliveries (id, job_id, webhook_id, url, event)
    select gen_random_uuid(), asked.id, w.id, w.url, 'job.cancelled'
    from asked
    join haulage.webhooks w on w.is_active and 'job.cancelled' = any (w.events)
    where asked.status = 'cancelled'
)
select id::text as id, status from asked;

-- name: retry_jobs
-- Makes the jobs $1 that have ended in a status of $2 pending again with a fresh budget. Where caps of
-- jobs ($3) and bytes ($4) are given, a submitter gets no more than fit under them or under its own;
-- those that do not fit stay as they are and say why.
with
ended as (
    select id, status, submitted_by
    from haulage.jobs
    where id = any ($1::uuid[]) and status = any ($2)
      and status in ('completed', 'failed', 'cancelled')
    order by id
    for no key update
),
-- As count_pending counts, against what a key may have; once a submitter, not once a job.
room as materialized (
    select
        s.submitted_by,
        coalesce(k.max_pending_jobs, $3::bigint) - w.jobs as jobs,
        coalesce(k.max_pending_bytes, $4::bigint) - w.size_bytes as size_bytes
    from (select distinct submitted_by from ended where submitted_by <> '') s
    left join haulage.api_keys k on k.id::text = s.submitted_by
    cross join lateral (
        select count(*) as jobs, coalesce(sum(pg_column_size(p.payload)), 0) as size_bytes
        from haulage.jobs j
        join haulage.job_payloads p on p.job_id = j.id
        where j.submitted_by = s.submitted_by and j.submitted_by <> '' and j.status = 'pending'
    ) w
    where $3 is not null
),
-- What would not even fit alone takes no room from those behind it.
asked as (
    select
        e.id, e.status, r.jobs as room_jobs, r.size_bytes as room_bytes,
        pg_column_size(p.payload) as own_bytes,
        count(*) filter (where pg_column_size(p.payload) <= r.size_bytes) over through as jobs,
        sum(pg_column_size(p.payload)) filter (where pg_column_size(p.payload) <= r.size_bytes)
            over through as size_bytes
    from ended e
    left join haulage.job_payloads p on p.job_id = e.id
    left join room r using (submitted_by)
    window through as (partition by e.submitted_by order by e.id)
),
judged as (
    select
        id, status,
        case
            when jobs > room_jobs or room_jobs < 1 then 'pending-jobs'
            when size_bytes > room_bytes or own_bytes > room_bytes then 'pending-bytes'
        end as violated
    from asked
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
    from judged
    where j.id = judged.id and judged.violated is null
    returning j.id, j.claim_no
),
-- Who completed would only find everything done already.
forgotten as (
    delete from haulage.job_checkpoints c
    using judged
    where c.job_id = judged.id and judged.status = 'completed' and judged.violated is null
),
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
    select id, claim_no, 0, 'status', 'pending' from revived
)
select id::text as id, violated from judged;

-- name: get_status
-- The status of a job.
select status from haulage.jobs where id = $1;
