create view reporting.submitter_use as
-- What ended is bounded to a week, so that an index leads to it; what waits or runs is few.
with
alive as (
    select
        submitted_by,
        count(*) filter (where status = 'pending') as pending,
        count(*) filter (where status = 'running') as running
    from (
        select submitted_by, status from haulage.jobs where status = 'pending'
        union all
        select submitted_by, status from haulage.jobs where status = 'running'
    ) unfinished
    group by submitted_by
),
ended as (
    select
        submitted_by,
        count(*) as finished,
        count(*) filter (where status = 'completed') as completed,
        count(*) filter (where status = 'failed') as failed,
        count(*) filter (where status = 'cancelled') as cancelled,
        -- The latest claim's run, as in reporting.jobs; one conversion for each sum.
        sum(finished_at - started_at) filter (where started_at >= run_at) as run_time,
        max(finished_at) as last_finished_at
    from haulage.jobs
    where status in ('completed', 'failed', 'cancelled')
      and finished_at > now() - interval '7 days'
    group by submitted_by
)
select
    submitter.id as submitted_by,
    key.name as key_name,
    key.last_used_at as key_last_used_at,
    key.revoked_at as key_revoked_at,
    key.max_pending_jobs,
    coalesce(alive.pending, 0) as pending,
    coalesce(alive.running, 0) as running,
    coalesce(ended.finished, 0) as finished_7d,
    coalesce(ended.completed, 0) as completed_7d,
    coalesce(ended.failed, 0) as failed_7d,
    coalesce(ended.cancelled, 0) as cancelled_7d,
    coalesce(round(extract(epoch from ended.run_time), 3), 0) as run_seconds_7d,
    ended.last_finished_at
from (
    select id::text from haulage.api_keys
    union select submitted_by from alive
    union select submitted_by from ended
) as submitter (id)
left join haulage.api_keys key on key.id::text = submitter.id
left join alive on alive.submitted_by = submitter.id
left join ended on ended.submitted_by = submitter.id;

comment on view reporting.submitter_use is
    'One row for each API key, and for each other submitter with jobs now or in the last 7 days.';
comment on column reporting.submitter_use.submitted_by is
    'Id of the API key, as in reporting.jobs; empty text for nobody known.';
comment on column reporting.submitter_use.key_name is 'Name of the API key.';
comment on column reporting.submitter_use.key_last_used_at is
    'When the key was last used, to the minute.';
comment on column reporting.submitter_use.key_revoked_at is 'When the key was revoked.';
comment on column reporting.submitter_use.max_pending_jobs is
    'Jobs that the key may have waiting; empty for no bound of its own.';
comment on column reporting.submitter_use.pending is 'Jobs that wait now.';
comment on column reporting.submitter_use.running is 'Jobs that run now.';
comment on column reporting.submitter_use.finished_7d is
    'Jobs that ended in the last 7 days, however they did.';
comment on column reporting.submitter_use.completed_7d is 'Of them completed.';
comment on column reporting.submitter_use.failed_7d is 'Of them failed.';
comment on column reporting.submitter_use.cancelled_7d is 'Of them cancelled.';
comment on column reporting.submitter_use.run_seconds_7d is
    'Seconds that these jobs ran, together.';
comment on column reporting.submitter_use.last_finished_at is
    'When the latest of them ended.';
