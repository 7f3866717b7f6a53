create view reporting.daily_throughput as
-- A condition on the day reaches the hours below, before they read any job.
select
    date_bin(interval '24 hours', hour, timestamptz '2000-01-01 00:00Z') as day,
    pipeline,
    sum(finished)::bigint as finished,
    sum(completed)::bigint as completed,
    sum(failed)::bigint as failed,
    sum(cancelled)::bigint as cancelled,
    sum(wait_seconds) as wait_seconds,
    sum(run_seconds) as run_seconds
from reporting.hourly_throughput
group by day, pipeline;

comment on view reporting.daily_throughput is
    'One row for each day and pipeline in which jobs ended.';
comment on column reporting.daily_throughput.day is 'When the day began; whole days of UTC.';
comment on column reporting.daily_throughput.pipeline is 'Pipeline of the jobs.';
comment on column reporting.daily_throughput.finished is 'Jobs that ended, however they did.';
comment on column reporting.daily_throughput.completed is 'Of them completed.';
comment on column reporting.daily_throughput.failed is 'Of them failed.';
comment on column reporting.daily_throughput.cancelled is 'Of them cancelled.';
comment on column reporting.daily_throughput.wait_seconds is
    'Sum of reporting.jobs.wait_seconds of these jobs.';
comment on column reporting.daily_throughput.run_seconds is
    'Sum of reporting.jobs.run_seconds of these jobs.';
