create view reporting.attempts as
select
    a.job_id,
    a.claim_no,
    a.attempt,
    j.pipeline,
    j.queue,
    a.node_id,
    n.name as node_name,
    a.pid,
    a.started_at,
    a.ended_at,
    round(extract(epoch from coalesce(a.ended_at, now()) - a.started_at), 3) as run_seconds,
    a.outcome,
    a.cause,
    a.exit_code,
    a.signal,
    a.error_class,
    a.error_message,
    a.traceback,
    a.peak_memory_bytes,
    round(a.cpu_seconds::numeric, 3) as cpu_seconds,
    a.progress_fraction::numeric as progress_fraction,
    a.progress_stage,
    a.progress_message,
    a.progress_at
from haulage.job_attempts a
-- Outer and by key, so that the planner drops each where nobody asks for its columns.
left join haulage.jobs j on j.id = a.job_id
left join haulage.nodes n on n.id = a.node_id;

comment on view reporting.attempts is
    'One row for each claim of a job: what became of it, what it died of, what it used.';
comment on column reporting.attempts.job_id is 'Job that was claimed.';
comment on column reporting.attempts.claim_no is 'Number of the claim, from 1 for each job.';
comment on column reporting.attempts.attempt is
    'Number of the attempt; a claim that did not count has its number again in the next one.';
comment on column reporting.attempts.pipeline is 'Pipeline of the job.';
comment on column reporting.attempts.queue is 'Queue of the job.';
comment on column reporting.attempts.node_id is 'Node that claimed it.';
comment on column reporting.attempts.node_name is
    'Name of that node; empty once nothing of the node is kept.';
comment on column reporting.attempts.pid is
    'Process id of the worker on its machine; empty where none came up.';
comment on column reporting.attempts.started_at is 'When it was claimed.';
comment on column reporting.attempts.ended_at is 'When it ended; empty while it runs.';
comment on column reporting.attempts.run_seconds is
    'Seconds from its claim to its end, or until now.';
comment on column reporting.attempts.outcome is
    'completed, failed, cancelled, released (given back) or lost; empty while it runs.';
comment on column reporting.attempts.cause is
    'Why it ended so: exception, exit_code, signal, out_of_memory, timed_out, stalled, node_lost or'
    ' another; empty for an ordinary completion.';
comment on column reporting.attempts.exit_code is
    'Exit code of the worker that died; empty where it is unknown or a signal ended it.';
comment on column reporting.attempts.signal is 'Number of the signal that ended the worker.';
comment on column reporting.attempts.error_class is 'Class of the error.';
comment on column reporting.attempts.error_message is 'Message of the error, all lines.';
comment on column reporting.attempts.traceback is 'Where the error was raised in the pipeline.';
comment on column reporting.attempts.peak_memory_bytes is
    'Largest resident memory of the worker, its children included.';
comment on column reporting.attempts.cpu_seconds is
    'CPU seconds of the worker, its children included.';
comment on column reporting.attempts.progress_fraction is 'Latest progress, 0 to 1.';
comment on column reporting.attempts.progress_stage is 'Latest stage.';
comment on column reporting.attempts.progress_message is 'Latest message of the pipeline.';
comment on column reporting.attempts.progress_at is 'When it last reported progress.';
