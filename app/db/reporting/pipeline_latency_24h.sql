create view reporting.pipeline_latency_24h as
-- Each list of values is sorted once for all its percentiles.
select
    pipeline,
    n,
    round(wait[1]::numeric, 3) as wait_p50_seconds,
    round(wait[2]::numeric, 3) as wait_p90_seconds,
    round(wait[3]::numeric, 3) as wait_p95_seconds,
    round(wait[4]::numeric, 3) as wait_p99_seconds,
    round(run[1]::numeric, 3) as run_p50_seconds,
    round(run[2]::numeric, 3) as run_p90_seconds,
    round(run[3]::numeric, 3) as run_p95_seconds,
    round(run[4]::numeric, 3) as run_p99_seconds
from (
    select
        pipeline,
        count(*) as n,
        percentile_cont(array[0.5, 0.9, 0.95, 0.99]) within group (order by wait) as wait,
        percentile_cont(array[0.5, 0.9, 0.95, 0.99]) within group (order by run) as run
    -- The seconds of reporting.jobs, but as floating point from the start: PostgreSQL 15 sorts
    -- the numeric ones in nearly twice the time.
    from (
        select
            pipeline,
            date_part('epoch', started_at - greatest(created_at, run_at)) as wait,
            date_part('epoch', finished_at - started_at) as run
        from haulage.jobs
        where status = 'completed' and finished_at > now() - interval '24 hours'
    ) job
    group by pipeline
) completed;

comment on view reporting.pipeline_latency_24h is
    'One row for each pipeline that completed jobs in the last 24 hours.';
comment on column reporting.pipeline_latency_24h.pipeline is 'Pipeline of the jobs.';
comment on column reporting.pipeline_latency_24h.n is 'How many jobs it completed.';
comment on column reporting.pipeline_latency_24h.wait_p50_seconds is
    'Half of them waited no longer than so many seconds.';
comment on column reporting.pipeline_latency_24h.wait_p90_seconds is
    '90 of 100 of them waited no longer than so many seconds.';
comment on column reporting.pipeline_latency_24h.wait_p95_seconds is
    '95 of 100 of them waited no longer than so many seconds.';
comment on column reporting.pipeline_latency_24h.wait_p99_seconds is
    '99 of 100 of them waited no longer than so many seconds.';
comment on column reporting.pipeline_latency_24h.run_p50_seconds is
    'Half of them ran no longer than so many seconds.';
comment on column reporting.pipeline_latency_24h.run_p90_seconds is
    '90 of 100 of them ran no longer than so many seconds.';
comment on column reporting.pipeline_latency_24h.run_p95_seconds is
    '95 of 100 of them ran no longer than so many seconds.';
comment on column reporting.pipeline_latency_24h.run_p99_seconds is
    '99 of 100 of them ran no longer than so many seconds.';
