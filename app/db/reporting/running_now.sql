create view reporting.running_now as
select
    j.id as job_id,
    j.pipeline,
    j.queue,
    j.claim_no,
    j.attempt,
    j.node_id,
    n.name as node_name,
    a.pid,
    j.started_at,
    j.run_seconds,
    a.progress_fraction::numeric as progress_fraction,
    a.progress_stage,
    a.progress_message,
    a.progress_at,
    round(extract(epoch from now() - coalesce(a.progress_at, a.started_at)), 3) as silent_seconds,
    j.cancel_requested_at
from reporting.jobs j
-- By key, the claims that run and no others.
join haulage.job_attempts a on a.job_id = j.id and a.claim_no = j.claim_no
left join haulage.nodes n on n.id = j.node_id
where j.status = 'running';

comment on view reporting.running_now is 'One row for each job that runs, with its progress.';
comment on column reporting.running_now.job_id is 'The job.';
comment on column reporting.running_now.pipeline is 'Pipeline that runs it.';
comment on column reporting.running_now.queue is 'Queue that it waited in.';
comment on column reporting.running_now.claim_no is 'Number of the claim that runs.';
comment on column reporting.running_now.attempt is 'Number of the attempt.';
comment on column reporting.running_now.node_id is 'Node that runs it.';
comment on column reporting.running_now.node_name is 'Name of that node.';
comment on column reporting.running_now.pid is
    'Process id of the worker on its machine; empty until it is up.';
comment on column reporting.running_now.started_at is 'When it was claimed.';
comment on column reporting.running_now.run_seconds is 'Seconds since then.';
comment on column reporting.running_now.progress_fraction is 'Latest progress, 0 to 1.';
comment on column reporting.running_now.progress_stage is 'Stage under way.';
comment on column reporting.running_now.progress_message is 'Latest message of the pipeline.';
comment on column reporting.running_now.progress_at is 'When it last reported progress.';
comment on column reporting.running_now.silent_seconds is
    'Seconds since it last reported progress, or since its claim.';
comment on column reporting.running_now.cancel_requested_at is 'When somebody asked for its end.';
