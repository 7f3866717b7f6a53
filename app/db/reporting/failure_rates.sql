create view reporting.failure_rates as
-- Cancelled jobs say nothing about a pipeline and are left out.
select
    pipeline,
    completed_24h,
    failed_24h,
    round(failed_24h::numeric / nullif(completed_24h + failed_24h, 0), 4) as failure_rate_24h,
    completed_7d,
    failed_7d,
    round(failed_7d::numeric / nullif(completed_7d + failed_7d, 0), 4) as failure_rate_7d
from (
    select
        pipeline,
        count(*) filter (where status = 'completed' and is_recent) as completed_24h,
        count(*) filter (where status = 'failed' and is_recent) as failed_24h,
        count(*) filter (where status = 'completed') as completed_7d,
        count(*) filter (where status = 'failed') as failed_7d
    from (
        select pipeline, status, finished_at > now() - interval '24 hours' as is_recent
        from haulage.jobs
        where status in ('completed', 'failed') and finished_at > now() - interval '7 days'
    ) ended
    group by pipeline
) counted;

comment on view reporting.failure_rates is
    'One row for each pipeline that completed or failed jobs in the last 7 days.';
comment on column reporting.failure_rates.pipeline is 'Pipeline of the jobs.';
comment on column reporting.failure_rates.completed_24h is 'Jobs completed in the last 24 hours.';
comment on column reporting.failure_rates.failed_24h is 'Jobs failed in the last 24 hours.';
comment on column reporting.failure_rates.failure_rate_24h is
    'Share of the failed in both, 0 to 1; empty where there were none.';
comment on column reporting.failure_rates.completed_7d is 'Jobs completed in the last 7 days.';
comment on column reporting.failure_rates.failed_7d is 'Jobs failed in the last 7 days.';
comment on column reporting.failure_rates.failure_rate_7d is 'Share of the failed in both, 0 to 1.';
