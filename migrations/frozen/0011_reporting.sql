create view reporting.jobs as
-- One table and no join: what an error was is in reporting.attempts, since to look it up here would
-- cost every report over many jobs a second table.
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
    -- A claim is never earlier than run_at: whoever is claimed again after a delay has moved it.
    round(extract(epoch from greatest(
        case
            when status = 'pending' then now()
            when started_at >= run_at then started_at
            else finished_at
        end - greatest(created_at, run_at),
        interval '0'
    )), 3) as wait_seconds,
    case
        when status <> 'pending' and started_at >= run_at then
            round(extract(epoch from coalesce(finished_at, now()) - started_at), 3)
    end as run_seconds,
    timeout_seconds::numeric as timeout_seconds,
    start_timeout_seconds::numeric as start_timeout_seconds,
    stall_seconds::numeric as stall_seconds,
    memory_limit_bytes,
    batch_id,
    dataset_id,
    idempotency_key,
    encode(payload_hash, 'hex') as payload_hash,
    submitted_by,
    array_to_string(tags, ',') as tags,
    metadata::text as metadata
from haulage.jobs;

comment on view reporting.jobs is 'One row for each job that is kept.';
comment on column reporting.jobs.id is 'Id of the job; ids grow with the time of submission.';
comment on column reporting.jobs.pipeline is 'Registered name of the pipeline that runs it.';
comment on column reporting.jobs.queue is 'Queue that it waits in.';
comment on column reporting.jobs.status is
    'pending, running, completed, failed or cancelled; scheduled and retried jobs are pending.';
comment on column reporting.jobs.priority is 'Higher ones are claimed first.';
comment on column reporting.jobs.run_at is
    'Earliest start; after an attempt that is to be repeated, the earliest start of the next one.';
comment on column reporting.jobs.attempt is
    'Attempts that count so far; claims that were given back or lost with their node do not.';
comment on column reporting.jobs.max_attempts is 'Attempts that it may use up.';
comment on column reporting.jobs.node_losses is 'Claims that ended by the loss of their node.';
comment on column reporting.jobs.claim_no is 'How often it was claimed in all.';
comment on column reporting.jobs.node_id is 'Node of its latest claim.';
comment on column reporting.jobs.created_at is 'When it was submitted.';
comment on column reporting.jobs.started_at is 'When it was claimed last.';
comment on column reporting.jobs.finished_at is 'When it ended; empty while it waits or runs.';
comment on column reporting.jobs.cancel_requested_at is 'When somebody asked for its end.';
comment on column reporting.jobs.wait_seconds is
    'Seconds from when it could have run until its latest claim; until now where it waits, until'
    ' its end where it was cancelled waiting. 0 before its earliest start.';
comment on column reporting.jobs.run_seconds is
    'Seconds from its latest claim to its end, or until now; empty where it waits or was cancelled'
    ' before a further attempt. Earlier attempts are in reporting.attempts.';
comment on column reporting.jobs.timeout_seconds is
    'Longest run that it allows itself; empty where its pipeline or node says it.';
comment on column reporting.jobs.start_timeout_seconds is
    'Longest time for importing and constructing the pipeline; empty as above.';
comment on column reporting.jobs.stall_seconds is
    'Longest time without progress or checkpoint; empty as above.';
comment on column reporting.jobs.memory_limit_bytes is
    'Memory of all its processes together; empty as above.';
comment on column reporting.jobs.batch_id is 'Batch that it was submitted in.';
comment on column reporting.jobs.dataset_id is 'Dataset that it works on.';
comment on column reporting.jobs.idempotency_key is
    'Key under which it was submitted, unique for each submitter.';
comment on column reporting.jobs.payload_hash is
    'SHA-256, hexadecimal, of what the key was used for.';
comment on column reporting.jobs.submitted_by is
    'Id of the API key that submitted it, as in reporting.submitter_use; an empty text for nobody'
    ' known.';
comment on column reporting.jobs.tags is
    'Its tags with commas between them; reporting.job_tags has a row for each.';
comment on column reporting.jobs.metadata is 'What the submitter noted about it, JSON as text.';

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

create view reporting.milestones as
select
    e.id as event_id,
    e.job_id,
    e.claim_no,
    e.attempt,
    j.pipeline,
    e.stage,
    e.fraction::numeric as fraction,
    e.message,
    e.created_at as reached_at,
    -- Until the claim's next event: a later stage or its end. By index, and only where it is asked
    -- for; a window function would be worked out for every row.
    (
        select round(extract(epoch from later.created_at - e.created_at), 3)
        from haulage.job_events later
        where later.job_id = e.job_id and later.claim_no = e.claim_no and later.id > e.id
        order by later.id
        limit 1
    ) as stage_seconds
from haulage.job_events e
left join haulage.jobs j on j.id = e.job_id
where e.kind = 'milestone';

comment on view reporting.milestones is 'One row for each stage that an attempt entered.';
comment on column reporting.milestones.event_id is 'Grows within a job in the order of the stages.';
comment on column reporting.milestones.job_id is 'Job that got there.';
comment on column reporting.milestones.claim_no is 'Claim under which it did.';
comment on column reporting.milestones.attempt is 'Number of the attempt.';
comment on column reporting.milestones.pipeline is 'Pipeline of the job.';
comment on column reporting.milestones.stage is 'Name of the stage.';
comment on column reporting.milestones.fraction is 'Share of the whole job done by then, 0 to 1.';
comment on column reporting.milestones.message is 'What the pipeline said at that moment.';
comment on column reporting.milestones.reached_at is 'When the stage began.';
comment on column reporting.milestones.stage_seconds is
    'Seconds until the next stage or the end of the attempt; empty for the stage under way.';

create view reporting.job_tags as
select j.id as job_id, tag.name as tag, j.pipeline, j.status, j.created_at, j.finished_at
from haulage.jobs j
cross join lateral unnest(j.tags) as tag (name);

comment on view reporting.job_tags is 'One row for each tag of a job.';
comment on column reporting.job_tags.job_id is 'Job that has the tag.';
comment on column reporting.job_tags.tag is 'The tag.';
comment on column reporting.job_tags.pipeline is 'Pipeline of the job.';
comment on column reporting.job_tags.status is 'Status of the job.';
comment on column reporting.job_tags.created_at is 'When the job was submitted.';
comment on column reporting.job_tags.finished_at is 'When the job ended.';

create view reporting.llm_usage as
-- Joined before the sums: a condition on the job then reads the usage of those jobs alone, and all
-- of it is sooner done than the other way round (0.5 s instead of 0.8 for 500,000 rows).
select
    j.id as job_id,
    j.pipeline,
    used.stage,
    used.model,
    sum(used.calls)::bigint as calls,
    sum(used.cached_calls)::bigint as cached_calls,
    sum(used.prompt_tokens)::bigint as prompt_tokens,
    sum(used.completion_tokens)::bigint as completion_tokens,
    sum(used.cost) as cost,
    min(used.created_at) as first_at,
    max(used.created_at) as last_at,
    j.finished_at
from haulage.usage used
join haulage.jobs j on j.id = used.job_id
group by j.id, j.pipeline, j.finished_at, used.stage, used.model;

comment on view reporting.llm_usage is
    'One row for each job, stage and model: what its calls came to over all attempts.';
comment on column reporting.llm_usage.job_id is 'Job that made the calls.';
comment on column reporting.llm_usage.pipeline is 'Pipeline of the job.';
comment on column reporting.llm_usage.stage is 'Stage that made them.';
comment on column reporting.llm_usage.model is 'Model that was asked.';
comment on column reporting.llm_usage.calls is 'Calls that were made, failed ones included.';
comment on column reporting.llm_usage.cached_calls is
    'Calls whose answer was kept from an earlier one, at no cost.';
comment on column reporting.llm_usage.prompt_tokens is 'Tokens of the prompts.';
comment on column reporting.llm_usage.completion_tokens is 'Tokens of the answers.';
comment on column reporting.llm_usage.cost is 'Cost, in the currency of the prices that were set.';
comment on column reporting.llm_usage.first_at is 'When the first of the calls was noted.';
comment on column reporting.llm_usage.last_at is
    'When the last call that cost something was noted.';
comment on column reporting.llm_usage.finished_at is
    'When the job ended; empty while it waits or runs. A condition on it is answered from the usage'
    ' of those jobs alone, one on first_at or last_at from all that is kept.';

create view reporting.hourly_throughput as
-- Hour by hour through the index of ended jobs. Whoever asks for some hours reads only those, which
-- grouping by an expression of finished_at could do only with one more index on a busy table.
select
    hour.starts_at as hour,
    ended.pipeline,
    ended.finished,
    ended.completed,
    ended.failed,
    ended.cancelled,
    ended.wait_seconds,
    ended.run_seconds
-- As an array, which the planner takes for 10 hours. It takes a series for 1,000, and compiles a plan
-- that seems so dear for half a second.
from unnest(array(
    select generate_series(
        date_bin(
            interval '1 hour',
            least(
                (select min(finished_at) from haulage.jobs where status = 'completed'),
                (select min(finished_at) from haulage.jobs where status = 'failed'),
                (select min(finished_at) from haulage.jobs where status = 'cancelled')
            ),
            timestamptz '2000-01-01 00:00Z'
        ),
        now(),
        interval '1 hour'
    )
)) as hour (starts_at)
cross join lateral (
    select
        pipeline,
        count(*) as finished,
        count(*) filter (where status = 'completed') as completed,
        count(*) filter (where status = 'failed') as failed,
        count(*) filter (where status = 'cancelled') as cancelled,
        sum(wait_seconds) as wait_seconds,
        coalesce(sum(run_seconds), 0) as run_seconds
    from reporting.jobs
    where status in ('completed', 'failed', 'cancelled')
      and finished_at >= hour.starts_at
      and finished_at < hour.starts_at + interval '1 hour'
    group by pipeline
) ended;

comment on view reporting.hourly_throughput is
    'One row for each hour and pipeline in which jobs ended.';
comment on column reporting.hourly_throughput.hour is 'When the hour began; whole hours of UTC.';
comment on column reporting.hourly_throughput.pipeline is 'Pipeline of the jobs.';
comment on column reporting.hourly_throughput.finished is 'Jobs that ended, however they did.';
comment on column reporting.hourly_throughput.completed is 'Of them completed.';
comment on column reporting.hourly_throughput.failed is 'Of them failed.';
comment on column reporting.hourly_throughput.cancelled is 'Of them cancelled.';
comment on column reporting.hourly_throughput.wait_seconds is
    'Sum of reporting.jobs.wait_seconds of these jobs.';
comment on column reporting.hourly_throughput.run_seconds is
    'Sum of reporting.jobs.run_seconds of these jobs.';

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

create view reporting.pipeline_latency_7d as
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
        where status = 'completed' and finished_at > now() - interval '7 days'
    ) job
    group by pipeline
) completed;

comment on view reporting.pipeline_latency_7d is
    'One row for each pipeline that completed jobs in the last 7 days.';
comment on column reporting.pipeline_latency_7d.pipeline is 'Pipeline of the jobs.';
comment on column reporting.pipeline_latency_7d.n is 'How many jobs it completed.';
comment on column reporting.pipeline_latency_7d.wait_p50_seconds is
    'Half of them waited no longer than so many seconds.';
comment on column reporting.pipeline_latency_7d.wait_p90_seconds is
    '90 of 100 of them waited no longer than so many seconds.';
comment on column reporting.pipeline_latency_7d.wait_p95_seconds is
    '95 of 100 of them waited no longer than so many seconds.';
comment on column reporting.pipeline_latency_7d.wait_p99_seconds is
    '99 of 100 of them waited no longer than so many seconds.';
comment on column reporting.pipeline_latency_7d.run_p50_seconds is
    'Half of them ran no longer than so many seconds.';
comment on column reporting.pipeline_latency_7d.run_p90_seconds is
    '90 of 100 of them ran no longer than so many seconds.';
comment on column reporting.pipeline_latency_7d.run_p95_seconds is
    '95 of 100 of them ran no longer than so many seconds.';
comment on column reporting.pipeline_latency_7d.run_p99_seconds is
    '99 of 100 of them ran no longer than so many seconds.';

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

create view reporting.queue_now as
with
-- Both read a partial index that is as small as what it counts.
waiting as (
    select
        queue,
        count(*) filter (where run_at <= now()) as due,
        count(*) filter (where run_at > now()) as scheduled,
        min(run_at) filter (where run_at <= now()) as oldest_run_at
    from haulage.jobs
    where status = 'pending'
    group by queue
),
busy as (
    select queue, count(*) as running from haulage.jobs where status = 'running' group by queue
)
select
    named.queue,
    coalesce(q.is_paused, false) as is_paused,
    coalesce(w.due, 0) as due,
    coalesce(w.scheduled, 0) as scheduled,
    coalesce(b.running, 0) as running,
    round(extract(epoch from now() - w.oldest_run_at), 3) as oldest_wait_seconds
from (
    select name from haulage.queues union select queue from waiting union select queue from busy
) as named (queue)
left join haulage.queues q on q.name = named.queue
left join waiting w on w.queue = named.queue
left join busy b on b.queue = named.queue;

comment on view reporting.queue_now is
    'One row for each queue that has jobs to do or was paused once, as it is now.';
comment on column reporting.queue_now.queue is 'Name of the queue.';
comment on column reporting.queue_now.is_paused is 'Whether nothing of it is claimed at present.';
comment on column reporting.queue_now.due is 'Pending jobs that could run now.';
comment on column reporting.queue_now.scheduled is 'Pending jobs with an earliest start to come.';
comment on column reporting.queue_now.running is 'Jobs that run.';
comment on column reporting.queue_now.oldest_wait_seconds is
    'Seconds that the longest due job has been due; empty where none is.';

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

create view reporting.stuck_candidates as
-- From the job's own row and those of nodes and queues alone. How long a job has been silent is in
-- reporting.running_now.
select
    job.id as job_id,
    job.pipeline,
    job.queue,
    job.status,
    told.reason,
    told.since,
    round(extract(epoch from now() - told.since), 3) as since_seconds,
    job.claim_no,
    job.node_id,
    node.name as node_name
from haulage.jobs job
left join haulage.nodes node on node.id = job.node_id
cross join lateral (
    select
        node.heartbeat_at + make_interval(secs => node.lease_seconds) as ends_at
) lease
cross join lateral (
    -- The time-out counts from the worker's first word, and its processes take a while to end.
    select
        job.started_at + make_interval(secs => job.timeout_seconds) + interval '1 minute' as ends_at
) allowed
-- One reason for each job, the one that explains the others.
cross join lateral (
    select reason, since
    from (
        values
            (1, 'node_unknown', job.started_at, node.id is null),
            (2, 'node_stopped', node.stopped_at, node.state = 'stopped'),
            (3, 'node_lost', lease.ends_at, lease.ends_at <= now()),
            (
                4, 'cancel_unheard', job.cancel_requested_at,
                job.cancel_requested_at < now() - interval '1 minute'
            ),
            (5, 'timeout_passed', allowed.ends_at, allowed.ends_at < now()),
            (6, 'runs_for_a_day', job.started_at, job.started_at < now() - interval '1 day')
    ) as reasons (weight, reason, since, is_so)
    where is_so
    order by weight
    limit 1
) told
where job.status = 'running'
union all
-- The index of waiting jobs has all of it; the status would have to be read from the row.
select
    id,
    pipeline,
    queue,
    'pending',
    'due_for_an_hour',
    run_at,
    round(extract(epoch from now() - run_at), 3),
    claim_no,
    null,
    null
from haulage.jobs
where status = 'pending'
  and run_at < now() - interval '1 hour'
  and queue not in (select name from haulage.queues where is_paused);

comment on view reporting.stuck_candidates is
    'One row for each job that may need somebody to look after it, with the weightiest reason.';
comment on column reporting.stuck_candidates.job_id is 'The job.';
comment on column reporting.stuck_candidates.pipeline is 'Its pipeline.';
comment on column reporting.stuck_candidates.queue is 'Its queue.';
comment on column reporting.stuck_candidates.status is 'pending or running.';
comment on column reporting.stuck_candidates.reason is
    'node_unknown, node_stopped, node_lost (its lease ended), cancel_unheard (for a minute),'
    ' timeout_passed (its own, by a minute), runs_for_a_day; of a pending job: due_for_an_hour, in'
    ' a queue that is not paused.';
comment on column reporting.stuck_candidates.since is 'From when on that has been so.';
comment on column reporting.stuck_candidates.since_seconds is 'Seconds since then.';
comment on column reporting.stuck_candidates.claim_no is 'Number of its latest claim.';
comment on column reporting.stuck_candidates.node_id is 'Node that runs it.';
comment on column reporting.stuck_candidates.node_name is 'Name of that node.';

create view reporting.nodes as
select
    node.id as node_id,
    node.name,
    node.pid,
    node.version,
    case
        when node.state = 'stopped' or node.lease_ends_at > now() then node.state
        else 'lost'
    end as state,
    node.capacity,
    (
        select count(*) from haulage.jobs j where j.status = 'running' and j.node_id = node.id
    ) as running,
    node.lease_seconds::numeric as lease_seconds,
    node.heartbeat_at,
    round(extract(epoch from now() - node.heartbeat_at), 3) as heartbeat_seconds,
    node.started_at,
    node.stopped_at
from (
    select
        id, name, pid, version, state, capacity, lease_seconds, heartbeat_at, started_at,
        stopped_at,
        heartbeat_at + make_interval(secs => lease_seconds) as lease_ends_at
    from haulage.nodes
) node;

comment on view reporting.nodes is
    'One row for each boot of a scheduler that is kept: a restarted one is a new node.';
comment on column reporting.nodes.node_id is 'Id of the node.';
comment on column reporting.nodes.name is 'Its name: usually that of its machine.';
comment on column reporting.nodes.pid is 'Process id of the scheduler on its machine.';
comment on column reporting.nodes.version is 'Version of Haulage that it runs.';
comment on column reporting.nodes.state is
    'active, draining (claims nothing any more), stopped, or lost (its lease ended).';
comment on column reporting.nodes.capacity is 'Jobs that it runs at a time.';
comment on column reporting.nodes.running is 'Jobs that it runs now.';
comment on column reporting.nodes.lease_seconds is
    'Seconds without a heartbeat after which others take over its jobs.';
comment on column reporting.nodes.heartbeat_at is 'When it last renewed its lease.';
comment on column reporting.nodes.heartbeat_seconds is 'Seconds since then.';
comment on column reporting.nodes.started_at is 'When it started.';
comment on column reporting.nodes.stopped_at is 'When it stopped in an orderly way.';

create view reporting.scaling as
select
    waiting.due,
    waiting.scheduled,
    busy.running,
    waiting.due + busy.running as wanted_slots,
    alive.nodes,
    alive.capacity,
    waiting.oldest_wait_seconds
from (
    select
        count(*) filter (where run_at <= now()) as due,
        count(*) filter (where run_at > now()) as scheduled,
        round(extract(epoch from now() - min(run_at) filter (where run_at <= now())), 3)
            as oldest_wait_seconds
    from haulage.jobs
    where status = 'pending'
      and queue not in (select name from haulage.queues where is_paused)
) waiting
cross join (select count(*) as running from haulage.jobs where status = 'running') busy
cross join (
    -- Those that claim: neither draining nor past their lease.
    select count(*) as nodes, coalesce(sum(capacity), 0) as capacity
    from haulage.nodes
    where state = 'active' and heartbeat_at + make_interval(secs => lease_seconds) > now()
) alive;

comment on view reporting.scaling is
    'Always one row: what a scaler (such as KEDA) needs to choose the number of nodes.';
comment on column reporting.scaling.due is
    'Pending jobs that could run now; those of paused queues are left out.';
comment on column reporting.scaling.scheduled is
    'Pending jobs with an earliest start to come; those of paused queues are left out.';
comment on column reporting.scaling.running is 'Jobs that run.';
comment on column reporting.scaling.wanted_slots is
    'due and running together: divided by the capacity of a node, the nodes that are wanted.';
comment on column reporting.scaling.nodes is
    'Nodes that claim jobs: alive and not draining.';
comment on column reporting.scaling.capacity is 'Jobs that these run at a time, together.';
comment on column reporting.scaling.oldest_wait_seconds is
    'Seconds that the longest due job has been due; empty where none is.';

-- Whether a result has the parts that views take apart, and these the types that they give; one that
-- says themes/1 and has not would end every report over all analyses.
create or replace function haulage.is_analysis(result jsonb) returns boolean
language plpgsql
immutable strict parallel safe
-- What it costs to unpack a result of megabytes, which the server does not count. Together with a
-- language that is not inlined it keeps plans to the index whose rows were asked already; a change
-- of the answer needs that index built anew.
cost 10000
as $$
begin
    -- Strict: what is not there makes the answer unknown, which is no. With its schema, or a reader's
    -- function of this name would be shown every result. "nu" begins "number" and "null".
    return pg_catalog.jsonb_path_exists(result, 'strict $ ? (
        @.schema == "themes/1"
        && @.input.questions.type() == "array"
        && !exists(@.input.questions[*] ? (@.type() != "object"))
        && @.input.languages.type() == "object"
        && !exists(@.input.languages.* ? (!(@.type() starts with "nu")))
        && !exists(@.input ? (
            !(@.rows.type() starts with "nu") || !(@.non_answers.type() starts with "nu")
            || !(@.analysed.type() starts with "nu") || !(@.unique_texts.type() starts with "nu")
            || !(@.duplicates.type() starts with "nu")
        ))
        && @.labelling.reasons.type() == "array"
        && !exists(@.labelling ? (
            !(@.degraded.type() == "boolean" || @.degraded == null)
        ))
        && !exists(@.created_by ? (!(@.seed.type() starts with "nu")))
        && !exists(@.metrics ? (
            !(@.coverage.type() starts with "nu") || !(@.stability.type() starts with "nu")
            || !(@.separation.type() starts with "nu") || !(@.redundancy.type() starts with "nu")
        ))
        && !exists(@.usage ? (
            !(@.llm_calls.type() starts with "nu") || !(@.cached_calls.type() starts with "nu")
            || !(@.prompt_tokens.type() starts with "nu")
            || !(@.completion_tokens.type() starts with "nu") || !(@.cost.type() starts with "nu")
        ))
        && !exists(@.other ? (
            !(@.responses.type() starts with "nu") || !(@.share.type() starts with "nu")
        ))
        && !exists(@.failed ? (
            !(@.responses.type() starts with "nu") || !(@.share.type() starts with "nu")
        ))
        && @.warnings.type() == "array"
        && !exists(@.warnings[*] ? (@.type() != "object"))
        && @.themes.type() == "array"
        && !exists(@.themes[*].id ? (@.type() != "string"))
        && !exists(@.themes[*].responses ? (@.type() != "number"))
        && !exists(@.themes[*] ? (
            !(@.share.type() starts with "nu") || !(@.unique_texts.type() starts with "nu")
            || !(@.cohesion.type() starts with "nu") || !(@.separation.type() starts with "nu")
        ))
        && !exists(@.themes[*].stance ? (
            !(@.positive.type() starts with "nu") || !(@.negative.type() starts with "nu")
            || !(@.mixed.type() starts with "nu") || !(@.neutral.type() starts with "nu")
        ))
        && !exists(@.themes[*].keywords ? (@.type() != "array"))
        && !exists(@.themes[*].keywords[*] ? (@.type() == "array"))
        && !exists(@.themes[*].merged_from ? (@.type() != "array"))
        && !exists(@.themes[*].merged_from[*] ? (@.type() == "array"))
        && !exists(@.themes[*].by_group.* ? (@.type() != "object"))
        && !exists(@.themes[*].by_group.*.* ? (
            !(@.responses.type() starts with "nu") || !(@.share.type() starts with "nu")
        ))
        && !exists(@.themes[*].quotes[*] ? (@.type() != "object"))
        && !exists(@.themes[*].quotes[*] ? (
            !(@.start.type() starts with "nu") || !(@.end.type() starts with "nu")
            || !(@.verified.type() == "boolean" || @.verified == null)
        ))
        && @.insights.type() == "array"
        && !exists(@.insights[*] ? (
            !(@.numbers_checked.type() == "boolean" || @.numbers_checked == null)
        ))
        && !exists(@.insights[*].theme_ids ? (@.type() != "array"))
        && !exists(@.insights[*].theme_ids[*] ? (@.type() == "array"))
        && !exists(@.insights[*].evidence[*] ? (@.type() != "object"))
        && @.assignments.type() == "array"
        && !exists(@.assignments[*] ? (!(@.score.type() starts with "nu")))
        && !exists(@.assignments[*].theme_ids ? (@.type() != "array"))
        && !exists(@.assignments[*].theme_ids[*] ? (@.type() == "array"))
    )');
end
$$;

comment on function haulage.is_analysis(jsonb) is
    'Whether a result of a job is a thematic analysis in the format themes/1.';

-- Views ask it with the rights of whoever reads them.
grant execute on function haulage.is_analysis to public;

create view reporting.analyses as
select
    j.id as job_id,
    j.finished_at,
    j.pipeline,
    j.submitted_by,
    round(extract(epoch from j.finished_at - j.started_at), 3) as run_seconds,
    asked.question,
    asked.text_columns,
    analysis.input ->> 'dataset' as dataset_id,
    (analysis.input ->> 'rows')::bigint as rows,
    (analysis.input ->> 'non_answers')::bigint as non_answers,
    (analysis.input ->> 'analysed')::bigint as analysed,
    (analysis.input ->> 'unique_texts')::bigint as unique_texts,
    (analysis.input ->> 'duplicates')::bigint as duplicates,
    spoken.languages,
    counted.themes,
    counted.subthemes,
    (analysis.metrics ->> 'coverage')::numeric as coverage,
    (analysis.other ->> 'responses')::bigint as other_responses,
    (analysis.other ->> 'share')::numeric as other_share,
    (analysis.failed ->> 'responses')::bigint as failed_responses,
    (analysis.failed ->> 'share')::numeric as failed_share,
    (analysis.metrics ->> 'stability')::numeric as stability,
    (analysis.metrics ->> 'separation')::numeric as separation,
    (analysis.metrics ->> 'redundancy')::numeric as redundancy,
    analysis.created_by ->> 'mode' as mode,
    analysis.labelling ->> 'method' as labelling_method,
    analysis.labelling ->> 'model' as model,
    (analysis.labelling ->> 'degraded')::boolean as degraded,
    told.reasons as labelling_reasons,
    analysis.embedding ->> 'backend' as embedding_backend,
    (analysis.usage ->> 'llm_calls')::bigint as llm_calls,
    (analysis.usage ->> 'cached_calls')::bigint as cached_calls,
    (analysis.usage ->> 'prompt_tokens')::bigint as prompt_tokens,
    (analysis.usage ->> 'completion_tokens')::bigint as completion_tokens,
    (analysis.usage ->> 'cost')::numeric as cost,
    told.warnings,
    analysis.created_by ->> 'version' as recipe_version,
    (analysis.created_by ->> 'seed')::bigint as seed,
    analysis.created_by #>> '{started_from,job}' as started_from_job_id
from haulage.jobs j
join haulage.job_results r on r.job_id = j.id
-- Unpacks a result once, and where each answer went not at all.
cross join lateral jsonb_to_record(r.result) as analysis (
    created_by jsonb, labelling jsonb, embedding jsonb, input jsonb, themes jsonb, other jsonb,
    failed jsonb, metrics jsonb, usage jsonb, warnings jsonb
)
cross join lateral (
    select
        string_agg(asked.question, ' | ' order by asked.ordinality) as question,
        string_agg(asked."column", ', ' order by asked.ordinality) as text_columns
    from rows from (
        jsonb_to_recordset(analysis.input -> 'questions') as (question text, "column" text)
    ) with ordinality as asked
) as asked
cross join lateral (
    select string_agg(language.key, ', ' order by language.value::bigint desc, language.key)
        as languages
    from jsonb_each_text(analysis.input -> 'languages') as language
) as spoken
cross join lateral (
    select
        count(*) filter (where theme.parent is null) as themes,
        count(*) filter (where theme.parent is not null) as subthemes
    from jsonb_to_recordset(analysis.themes) as theme (parent text)
) as counted
cross join lateral (
    select
        (
            select string_agg(reason.value, '; ' order by reason.ordinality)
            from jsonb_array_elements_text(analysis.labelling -> 'reasons')
                with ordinality as reason
        ) as reasons,
        (
            select string_agg(warning.text, ' ' order by warning.ordinality)
            from rows from (jsonb_to_recordset(analysis.warnings) as (text text))
                with ordinality as warning
        ) as warnings
) as told
-- It always is; said so that the index of ended jobs gives the latest without the others.
where j.status = 'completed' and j.finished_at is not null and haulage.is_analysis(r.result);

comment on view reporting.analyses is
    'One row for each completed thematic analysis that is kept.';
comment on column reporting.analyses.job_id is 'The job; every view about analyses has it.';
comment on column reporting.analyses.finished_at is 'When the analysis was done.';
comment on column reporting.analyses.pipeline is 'Registered name of the pipeline that ran.';
comment on column reporting.analyses.submitted_by is
    'Who submitted it; empty where nobody had to say.';
comment on column reporting.analyses.run_seconds is 'From its first start to its end.';
comment on column reporting.analyses.question is
    'What people were asked; several questions are separated by |. Null where nothing tells.';
comment on column reporting.analyses.text_columns is
    'Columns that the answers stood in, separated by commas.';
comment on column reporting.analyses.dataset_id is
    'The stored dataset; null where the answers came with the job.';
comment on column reporting.analyses.rows is 'Answers given: analysed and non_answers together.';
comment on column reporting.analyses.non_answers is
    'Rows that say nothing: empty, "n/a", "don''t know" and the like.';
comment on column reporting.analyses.analysed is
    'Answers that say something. Every share of answers is a share of these.';
comment on column reporting.analyses.unique_texts is 'Different wordings among the analysed.';
comment on column reporting.analyses.duplicates is
    'Analysed answers that repeat another one word by word.';
comment on column reporting.analyses.languages is
    'Language codes, the most frequent first; und where a text is too short to tell.';
comment on column reporting.analyses.themes is 'How many themes it has, sub-themes not counted.';
comment on column reporting.analyses.subthemes is 'How many sub-themes.';
comment on column reporting.analyses.coverage is 'Share of analysed answers with a theme, 0 to 1.';
comment on column reporting.analyses.other_responses is 'Analysed answers without a theme.';
comment on column reporting.analyses.other_share is 'The same as a share of the analysed.';
comment on column reporting.analyses.failed_responses is
    'Analysed answers that the language model could not judge.';
comment on column reporting.analyses.failed_share is 'The same as a share of the analysed.';
comment on column reporting.analyses.stability is
    'How far the clusters come out again from samples of the answers: 1 the same, 0 by chance. '
    'Null with a codebook.';
comment on column reporting.analyses.separation is
    'How much nearer answers are to their theme than to the next one, -1 to 1. Null with a '
    'codebook.';
comment on column reporting.analyses.redundancy is
    'How near the two most alike themes are, as a cosine: towards 1 they say the same.';
comment on column reporting.analyses.mode is
    'keywords: no language model; name: it named the themes; full: it assigned the answers too.';
comment on column reporting.analyses.labelling_method is
    'Who named the themes: keywords, llm, mixed or codebook.';
comment on column reporting.analyses.model is 'The language model; null without one.';
comment on column reporting.analyses.degraded is 'Less was possible than was wished for.';
comment on column reporting.analyses.labelling_reasons is 'Why the naming is as it is.';
comment on column reporting.analyses.embedding_backend is
    'What turned texts into vectors: minilm-int8, lsa or endpoint.';
comment on column reporting.analyses.llm_calls is
    'Calls of a language model, failed ones too. What they cost by stage is in llm_usage.';
comment on column reporting.analyses.cached_calls is 'Calls whose answers were kept already.';
comment on column reporting.analyses.prompt_tokens is 'Tokens sent to language models.';
comment on column reporting.analyses.completion_tokens is 'Tokens received from them.';
comment on column reporting.analyses.cost is
    'In the currency of the prices that were set; 0 without prices.';
comment on column reporting.analyses.warnings is
    'What to know before reading on; null where there is nothing.';
comment on column reporting.analyses.recipe_version is
    'Version of the method; another one may give other themes.';
comment on column reporting.analyses.seed is 'The same seed gives the same themes.';
comment on column reporting.analyses.started_from_job_id is
    'The earlier job whose stages it took over; null for one of its own.';

create view reporting.themes as
select
    j.id as job_id,
    j.finished_at,
    theme.id as theme_id,
    theme.parent as parent_id,
    theme.ordinality as position,
    theme.name,
    theme.name_source,
    theme.description,
    array_to_string(theme.keywords, ', ') as keywords,
    theme.responses,
    theme.share,
    theme.unique_texts,
    (theme.stance ->> 'positive')::bigint as positive,
    (theme.stance ->> 'negative')::bigint as negative,
    (theme.stance ->> 'mixed')::bigint as mixed,
    (theme.stance ->> 'neutral')::bigint as neutral,
    theme.cohesion,
    theme.separation,
    nullif(array_to_string(theme.merged_from, ', '), '') as merged_from
from haulage.jobs j
join haulage.job_results r on r.job_id = j.id
cross join lateral rows from (
    jsonb_to_recordset(r.result -> 'themes') as (
        id text, parent text, name text, name_source text, description text, keywords text[],
        responses bigint, share numeric, unique_texts bigint, stance jsonb, cohesion numeric,
        separation numeric, merged_from text[]
    )
) with ordinality as theme
where j.status = 'completed' and haulage.is_analysis(r.result);

comment on view reporting.themes is
    'One row for each theme and each sub-theme of an analysis. Sub-themes are parts of a theme: '
    'ask for parent_id is null to count no answer twice within a theme.';
comment on column reporting.themes.job_id is 'The analysis.';
comment on column reporting.themes.finished_at is 'When the analysis was done.';
comment on column reporting.themes.theme_id is
    'T01 for a theme, T01.2 for a sub-theme; the same id means nothing in another analysis.';
comment on column reporting.themes.parent_id is
    'The theme that a sub-theme is in; null for a theme.';
comment on column reporting.themes.position is
    'Order in the result: the largest theme first, each followed by its sub-themes.';
comment on column reporting.themes.name is 'No two themes of one level have the same.';
comment on column reporting.themes.name_source is 'Who gave the name: keywords, llm or codebook.';
comment on column reporting.themes.description is
    'One or two sentences; null without a language model.';
comment on column reporting.themes.keywords is
    'Words that tell it from the others, best first, separated by commas.';
comment on column reporting.themes.responses is
    'Answers with this theme. An answer may have several themes, so these add up to more than the '
    'answers analysed. For a sub-theme: answers whose first theme is the parent and that lie in '
    'this part of it.';
comment on column reporting.themes.share is 'Of the answers analysed, 0 to 1, to four places.';
comment on column reporting.themes.unique_texts is 'Different wordings among responses.';
comment on column reporting.themes.positive is
    'Answers in favour or content; null, like the next three, where stance was not asked for.';
comment on column reporting.themes.negative is 'Answers against or discontent.';
comment on column reporting.themes.mixed is 'Answers that are both.';
comment on column reporting.themes.neutral is 'Answers that are neither.';
comment on column reporting.themes.cohesion is
    'How alike its answers are: mean cosine to their centre, or to the code of a codebook.';
comment on column reporting.themes.separation is
    'How much nearer its answers are to it than to the next theme, -1 to 1; null for sub-themes '
    'and with a codebook.';
comment on column reporting.themes.merged_from is
    'Names of themes that were joined into this one, separated by commas; null for most.';

create view reporting.theme_quotes as
select
    j.id as job_id,
    j.finished_at,
    theme.id as theme_id,
    theme.name as theme,
    quote.ordinality as position,
    quote.response_id,
    quote.text as quote,
    quote."start" as start_offset,
    quote."end" as end_offset,
    quote.verified
from haulage.jobs j
join haulage.job_results r on r.job_id = j.id
cross join lateral jsonb_to_recordset(r.result -> 'themes') as theme (
    id text, name text, quotes jsonb
)
cross join lateral rows from (
    jsonb_to_recordset(theme.quotes) as (
        response_id text, text text, "start" bigint, "end" bigint, verified boolean
    )
) with ordinality as quote
where j.status = 'completed' and haulage.is_analysis(r.result);

comment on view reporting.theme_quotes is
    'One row for each quote of a theme or sub-theme: some typical answers, word for word.';
comment on column reporting.theme_quotes.job_id is 'The analysis.';
comment on column reporting.theme_quotes.finished_at is 'When the analysis was done.';
comment on column reporting.theme_quotes.theme_id is 'The theme or sub-theme, as in themes.';
comment on column reporting.theme_quotes.theme is 'Its name.';
comment on column reporting.theme_quotes.position is 'The most typical quote of a theme is 1.';
comment on column reporting.theme_quotes.response_id is 'The answer that it is from.';
comment on column reporting.theme_quotes.quote is
    'The words as they were given; personal data that was recognised is masked.';
comment on column reporting.theme_quotes.start_offset is
    'Where it begins in the answer: characters before it.';
comment on column reporting.theme_quotes.end_offset is
    'Where it ends: characters of the answer up to its end.';
comment on column reporting.theme_quotes.verified is
    'Compared with the answer, and the same.';

create view reporting.responses as
select
    j.id as job_id,
    j.finished_at,
    response.ordinality as position,
    response.response_id,
    response.status,
    response.theme_ids[1] as theme_id,
    named.names ->> response.theme_ids[1] as theme,
    response.subtheme_id,
    named.names ->> response.subtheme_id as subtheme,
    cardinality(response.theme_ids) as themes,
    response.score,
    response.method,
    response.stance ->> response.theme_ids[1] as stance,
    response.reason
from haulage.jobs j
join haulage.job_results r on r.job_id = j.id
cross join lateral jsonb_to_record(r.result) as analysis (themes jsonb, assignments jsonb)
cross join lateral (
    select jsonb_object_agg(theme.id, theme.name) as names
    from jsonb_to_recordset(analysis.themes) as theme (id text, name text)
) as named
cross join lateral rows from (
    jsonb_to_recordset(analysis.assignments) as (
        response_id text, status text, theme_ids text[], subtheme_id text, score numeric,
        method text, stance jsonb, reason text
    )
) with ordinality as response
where j.status = 'completed' and haulage.is_analysis(r.result);

comment on view reporting.responses is
    'One row for each answer of an analysis, with its first theme; all themes of an answer are in '
    'response_themes. The answers themselves stay out of reporting: join your own data by '
    'response_id.';
comment on column reporting.responses.job_id is 'The analysis.';
comment on column reporting.responses.finished_at is 'When the analysis was done.';
comment on column reporting.responses.position is 'Place of the row in the input, from 1.';
comment on column reporting.responses.response_id is
    'Your id of the row, or its number where no id column was named; ID/COLUMN where several '
    'columns of answers were given.';
comment on column reporting.responses.status is
    'assigned: has a theme; other: has none; non_answer: says nothing; failed: could not be judged.';
comment on column reporting.responses.theme_id is
    'Its first theme: what most of it is about. Null unless assigned.';
comment on column reporting.responses.theme is 'Name of that theme.';
comment on column reporting.responses.subtheme_id is
    'Part of the first theme that it lies in; null where the theme has no parts.';
comment on column reporting.responses.subtheme is 'Name of that sub-theme.';
comment on column reporting.responses.themes is 'How many themes it has; 0 unless assigned.';
comment on column reporting.responses.score is
    'How near it is to its first theme, as a cosine; null where nothing was compared.';
comment on column reporting.responses.method is
    'What assigned it: cluster, similarity, llm or codebook; null for a non-answer by rule.';
comment on column reporting.responses.stance is
    'How it stands to its first theme: positive, negative, mixed or neutral; null where it was '
    'not asked for.';
comment on column reporting.responses.reason is 'Why it could not be judged; null for others.';

create view reporting.response_themes as
select
    j.id as job_id,
    j.finished_at,
    response.response_id,
    listed.theme_id,
    named.names ->> listed.theme_id as theme,
    listed.ordinality as rank,
    response.stance ->> listed.theme_id as stance
from haulage.jobs j
join haulage.job_results r on r.job_id = j.id
cross join lateral jsonb_to_record(r.result) as analysis (themes jsonb, assignments jsonb)
cross join lateral (
    select jsonb_object_agg(theme.id, theme.name) as names
    from jsonb_to_recordset(analysis.themes) as theme (id text, name text)
) as named
cross join lateral jsonb_to_recordset(analysis.assignments) as response (
    response_id text, theme_ids text[], stance jsonb
)
cross join lateral unnest(response.theme_ids) with ordinality as listed (theme_id)
where j.status = 'completed' and haulage.is_analysis(r.result);

comment on view reporting.response_themes is
    'One row for each answer and each theme that it has. Answers without a theme are not in it, '
    'sub-themes neither: both are in responses. Rows of a theme are its responses in themes.';
comment on column reporting.response_themes.job_id is 'The analysis.';
comment on column reporting.response_themes.finished_at is 'When the analysis was done.';
comment on column reporting.response_themes.response_id is 'The answer, as in responses.';
comment on column reporting.response_themes.theme_id is 'The theme, as in themes.';
comment on column reporting.response_themes.theme is 'Name of the theme.';
comment on column reporting.response_themes.rank is
    '1 for the first theme of the answer, which is what most of it is about.';
comment on column reporting.response_themes.stance is
    'How the answer stands to this theme: positive, negative, mixed or neutral; null where it was '
    'not asked for.';

create view reporting.theme_by_segment as
select
    j.id as job_id,
    j.finished_at,
    theme.id as theme_id,
    theme.parent as parent_id,
    theme.name as theme,
    by_column.key as group_column,
    segment.key as group_value,
    -- Never an error, whatever a group is called: days are added, so there is no 31 June to refuse.
    case
        when segment.key similar to '(19|20)[0-9]{2}' then make_date(segment.key::integer, 1, 1)
        when segment.key similar to '(19|20)[0-9]{2}[- ]?Q[1-4]' then
            make_date(left(segment.key, 4)::integer, right(segment.key, 1)::integer * 3 - 2, 1)
        when segment.key similar to '(19|20)[0-9]{2}-(0[1-9]|1[0-2])' then
            make_date(left(segment.key, 4)::integer, right(segment.key, 2)::integer, 1)
        when segment.key similar to '(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])' then
            make_date(left(segment.key, 4)::integer, substr(segment.key, 6, 2)::integer, 1)
            + right(segment.key, 2)::integer - 1
    end as period_start,
    (segment.value ->> 'responses')::bigint as responses,
    (segment.value ->> 'share')::numeric as share,
    theme.share as overall_share
from haulage.jobs j
join haulage.job_results r on r.job_id = j.id
cross join lateral jsonb_to_recordset(r.result -> 'themes') as theme (
    id text, parent text, name text, share numeric, by_group jsonb
)
cross join lateral jsonb_each(theme.by_group) as by_column
cross join lateral jsonb_each(by_column.value) as segment
where j.status = 'completed' and haulage.is_analysis(r.result);

comment on view reporting.theme_by_segment is
    'One row for each theme or sub-theme of an analysis and each group of people that it was '
    'compared by. The groups of one column add up to the responses of the theme.';
comment on column reporting.theme_by_segment.job_id is 'The analysis.';
comment on column reporting.theme_by_segment.finished_at is 'When the analysis was done.';
comment on column reporting.theme_by_segment.theme_id is 'The theme or sub-theme, as in themes.';
comment on column reporting.theme_by_segment.parent_id is
    'The theme that a sub-theme is in; null for a theme.';
comment on column reporting.theme_by_segment.theme is 'Its name.';
comment on column reporting.theme_by_segment.group_column is
    'The column that tells the groups apart, such as service.';
comment on column reporting.theme_by_segment.group_value is
    'The group; (none) for answers whose cell is empty.';
comment on column reporting.theme_by_segment.period_start is
    'Its first day where the group is a year (2026), quarter (2026-Q2), month (2026-05) or day '
    '(2026-05-17), else null. Sort by it to see a theme rise and fall within one analysis.';
comment on column reporting.theme_by_segment.responses is 'Answers of the group with this theme.';
comment on column reporting.theme_by_segment.share is
    'Of the answers of this group that were analysed, 0 to 1: comparable between groups of '
    'different sizes.';
comment on column reporting.theme_by_segment.overall_share is
    'Of all answers analysed, to compare the share with.';

create view reporting.theme_trend as
with
-- Analyses of the same question by the same pipeline are a series, counted by their end.
series as (
    select
        j.id as job_id,
        j.finished_at,
        j.pipeline,
        asked.question,
        asked.text_columns,
        theme.id as theme_id,
        theme.name as theme,
        theme.responses,
        (analysis.input ->> 'analysed')::bigint as analysed,
        theme.share,
        dense_rank() over (
            partition by j.pipeline, asked.question, asked.text_columns
            order by j.finished_at, j.id
        ) as analysis_no
    from haulage.jobs j
    join haulage.job_results r on r.job_id = j.id
    cross join lateral jsonb_to_record(r.result) as analysis (input jsonb, themes jsonb)
    cross join lateral (
        select
            string_agg(asked.question, ' | ' order by asked.ordinality) as question,
            string_agg(asked."column", ', ' order by asked.ordinality) as text_columns
        from rows from (
            jsonb_to_recordset(analysis.input -> 'questions') as (question text, "column" text)
        ) with ordinality as asked
    ) as asked
    -- One without themes has its place, too.
    left join lateral jsonb_to_recordset(analysis.themes) as theme (
        id text, parent text, name text, responses bigint, share numeric
    ) on theme.parent is null
    where j.status = 'completed' and haulage.is_analysis(r.result)
),
-- The last analysis that had the theme; compared only if it was the one just before.
followed as (
    select
        *,
        lag(analysis_no) over same_theme = analysis_no - 1 as was_there,
        lag(job_id) over same_theme as last_job_id,
        lag(responses) over same_theme as last_responses,
        lag(share) over same_theme as last_share
    from series
    window same_theme as (
        partition by pipeline, question, text_columns, theme order by analysis_no
    )
)
select
    pipeline,
    question,
    text_columns,
    theme,
    finished_at,
    (finished_at at time zone 'UTC')::date as finished_day,
    job_id,
    theme_id,
    analysis_no,
    responses,
    analysed,
    share,
    case when was_there then last_job_id end as previous_job_id,
    case when was_there then last_share end as previous_share,
    case when was_there then responses - last_responses end as responses_change,
    case when was_there then share - last_share end as share_change
from followed
where theme_id is not null;

comment on view reporting.theme_trend is
    'One row for each theme (not sub-theme) of each analysis, beside the theme of the same name in '
    'the analysis before it. Analyses of the same pipeline, question and columns follow each other. '
    'Names stay the same with a codebook; found themes may be called otherwise each time. For '
    'periods within one analysis see theme_by_segment.';
comment on column reporting.theme_trend.pipeline is
    'Registered name of the pipeline; with question and text_columns it makes a series.';
comment on column reporting.theme_trend.question is 'What people were asked, as in analyses.';
comment on column reporting.theme_trend.text_columns is
    'Columns that the answers stood in, as in analyses.';
comment on column reporting.theme_trend.theme is 'Name of the theme.';
comment on column reporting.theme_trend.finished_at is 'When the analysis was done.';
comment on column reporting.theme_trend.finished_day is 'The same as a day in UTC.';
comment on column reporting.theme_trend.job_id is 'The analysis.';
comment on column reporting.theme_trend.theme_id is 'The theme, as in themes.';
comment on column reporting.theme_trend.analysis_no is 'Place of the analysis in its series, from 1.';
comment on column reporting.theme_trend.responses is 'Answers with this theme.';
comment on column reporting.theme_trend.analysed is
    'Answers analysed: what the share is a share of.';
comment on column reporting.theme_trend.share is 'Of the answers analysed, 0 to 1.';
comment on column reporting.theme_trend.previous_job_id is
    'The analysis before; null, like the next three, where it had no theme of this name or there '
    'is none.';
comment on column reporting.theme_trend.previous_share is 'Share of the theme there.';
comment on column reporting.theme_trend.responses_change is
    'Answers more than there; less where negative.';
comment on column reporting.theme_trend.share_change is
    'Change of the share: 0.05 is five percentage points more.';

create view reporting.insights as
select
    j.id as job_id,
    j.finished_at,
    insight.ordinality as position,
    insight.text as insight,
    insight.source,
    insight.numbers_checked,
    array_to_string(insight.theme_ids, ', ') as theme_ids,
    shown.evidence
from haulage.jobs j
join haulage.job_results r on r.job_id = j.id
cross join lateral rows from (
    jsonb_to_recordset(r.result -> 'insights') as (
        text text, source text, numbers_checked boolean, theme_ids text[], evidence jsonb
    )
) with ordinality as insight
cross join lateral (
    select string_agg(answer.response_id, ', ' order by answer.ordinality) as evidence
    from rows from (jsonb_to_recordset(insight.evidence) as (response_id text))
        with ordinality as answer
) as shown
where j.status = 'completed' and haulage.is_analysis(r.result);

comment on view reporting.insights is
    'One row for each sentence that an analysis says about its themes.';
comment on column reporting.insights.job_id is 'The analysis.';
comment on column reporting.insights.finished_at is 'When the analysis was done.';
comment on column reporting.insights.position is 'The most general sentence is 1.';
comment on column reporting.insights.insight is 'The sentence.';
comment on column reporting.insights.source is 'Who worded it: template or llm.';
comment on column reporting.insights.numbers_checked is
    'Every figure in the sentence was computed from the answers.';
comment on column reporting.insights.theme_ids is
    'Themes that it is about, separated by commas; empty where it is about all of them.';
comment on column reporting.insights.evidence is
    'Ids of answers to read with it, separated by commas; null where there are none.';
