-- What somebody decides about a job from outside: to end it, or to begin again.

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
),
-- As in finish_job; one that runs is told of when it has ended.
told as (
    insert into haulage.webhook_deliveries (id, job_id, webhook_id, url, event)
    select gen_random_uuid(), asked.id, w.id, w.url, 'job.cancelled'
    from asked
    join haulage.webhooks w on w.is_active and 'job.cancelled' = any (w.events)
    where asked.status = 'cancelled'
)
select status from asked;

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

-- name: get_status
-- The status of a job.
select status from haulage.jobs where id = $1;
