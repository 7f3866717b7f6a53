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
