create view reporting.retries as
select
    again.id as job_id,
    again.pipeline,
    again.queue,
    again.status,
    again.attempt,
    again.max_attempts,
    again.node_losses,
    again.run_at,
    last.claim_no as last_claim_no,
    last.ended_at as last_ended_at,
    last.outcome as last_outcome,
    last.cause as last_cause,
    last.error_class as last_error_class,
    left(split_part(ltrim(last.error_message, e' \t\r\n'), e'\n', 1), 300) as last_error
from (
    -- By ids, which the index of waiting jobs tells by itself. For whole rows the planner would walk
    -- the index of all jobs that did not complete: 64 ms instead of 2 with 22,000 that failed.
    select id, pipeline, queue, status, attempt, max_attempts, node_losses, run_at, claim_no
    from haulage.jobs
    where status = 'pending'
      and id = any (array(select id from haulage.jobs where status = 'pending' and claim_no > 0))
    union all
    -- The claim that runs is not the one that ended.
    select id, pipeline, queue, status, attempt, max_attempts, node_losses, run_at, claim_no - 1
    from haulage.jobs
    where status = 'running' and claim_no > 1
) again
join haulage.job_attempts last on last.job_id = again.id and last.claim_no = again.claim_no;

comment on view reporting.retries is
    'One row for each job that waits or runs again after a claim that ended, with how it ended.';
comment on column reporting.retries.job_id is 'The job.';
comment on column reporting.retries.pipeline is 'Its pipeline.';
comment on column reporting.retries.queue is 'Its queue.';
comment on column reporting.retries.status is 'pending or running.';
comment on column reporting.retries.attempt is
    'Attempts that count so far; 0 where somebody retried it by hand, or where no claim counted.';
comment on column reporting.retries.max_attempts is 'Attempts that it may use up.';
comment on column reporting.retries.node_losses is 'Claims that ended by the loss of their node.';
comment on column reporting.retries.run_at is 'Earliest start of the attempt that waits or runs.';
comment on column reporting.retries.last_claim_no is 'Number of the latest claim that ended.';
comment on column reporting.retries.last_ended_at is 'When that one ended.';
comment on column reporting.retries.last_outcome is 'How it ended, as in reporting.attempts.';
comment on column reporting.retries.last_cause is 'Why it ended so, as in reporting.attempts.';
comment on column reporting.retries.last_error_class is 'Class of its error.';
comment on column reporting.retries.last_error is
    'First line of its error, 300 characters at most.';
