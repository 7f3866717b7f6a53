create view reporting.failures_grouped as
select
    job.pipeline,
    last.cause,
    last.error_class,
    -- What follows the first line differs from job to job: answers of servers, notes, values.
    left(split_part(ltrim(last.error_message, e' \t\r\n'), e'\n', 1), 300) as error,
    count(*) as jobs,
    count(*) filter (where job.finished_at > now() - interval '24 hours') as jobs_24h,
    min(job.finished_at) as first_seen_at,
    max(job.finished_at) as last_seen_at,
    (array_agg(job.id order by job.finished_at desc, job.id desc))[1] as last_job_id
from haulage.jobs job
join haulage.job_attempts last on last.job_id = job.id and last.claim_no = job.claim_no
where job.status = 'failed' and job.finished_at > now() - interval '7 days'
group by job.pipeline, last.cause, last.error_class, error;

comment on view reporting.failures_grouped is
    'One row for each kind of error that jobs of a pipeline failed with in the last 7 days.';
comment on column reporting.failures_grouped.pipeline is 'Pipeline of the jobs.';
comment on column reporting.failures_grouped.cause is
    'Why the last attempt ended, as in reporting.attempts.';
comment on column reporting.failures_grouped.error_class is 'Class of the error.';
comment on column reporting.failures_grouped.error is
    'First line of the message, 300 characters at most.';
comment on column reporting.failures_grouped.jobs is 'Jobs that failed so in the last 7 days.';
comment on column reporting.failures_grouped.jobs_24h is 'Of them in the last 24 hours.';
comment on column reporting.failures_grouped.first_seen_at is
    'When the first of them failed, of the last 7 days.';
comment on column reporting.failures_grouped.last_seen_at is 'When the latest of them failed.';
comment on column reporting.failures_grouped.last_job_id is 'Job that failed so the latest.';
