create view reporting.jobs as
select
    id,
    pipeline,
    queue,
    status,
    priority,
    run_at,
    attempt,
    max_attempts,
    node_losses,
    claim_no,
    node_id,
    created_at,
    started_at,
    finished_at,
    cancel_requested_at,
    -- From when it could have run at all until it did, or until now.
    case
        when started_at is not null or status = 'pending' then
            round(extract(epoch from greatest(
                coalesce(started_at, now()) - greatest(created_at, run_at), interval '0'
            )), 3)
    end as wait_seconds,
    round(extract(epoch from coalesce(finished_at, now()) - started_at), 3) as run_seconds
from haulage.jobs;

comment on view reporting.jobs is 'One row for each job that is kept.';
