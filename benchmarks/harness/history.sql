-- A month of work for benchmarks and tests of plans: {jobs} jobs over 30 days. The newest of them wait
-- or run, 2 in 100 failed at their second attempt, some were cancelled.

-- name: nodes
-- Four nodes that live, and one that stopped.
insert into haulage.nodes (id, name, pid, version, capacity, lease_seconds, state, stopped_at)
select
    lpad(n::text, 32, '0')::uuid, 'node-' || n, n, '1', 16, 86400,
    case when n = 5 then 'stopped' else 'active' end,
    case when n = 5 then now() end
from generate_series(1, 5) n;

-- name: keys
-- Nineteen API keys.
insert into haulage.api_keys (id, name, prefix, sha256)
select lpad(n::text, 32, '0')::uuid, 'key-' || n, 'hk', sha256(n::text::bytea)
from generate_series(1, 19) n;

-- name: jobs
-- Waits of 20 s and runs of 120 s in the mean, both exponential. Ids as ours: they grow with time.
insert into haulage.jobs (
    id, pipeline, queue, status, priority, run_at, attempt, max_attempts, claim_no, node_id,
    created_at, started_at, finished_at, submitted_by, tags
)
select
    (lpad(to_hex((extract(epoch from made_at) * 1000)::bigint), 12, '0')
        || '7000' || '8' || lpad(to_hex(n), 15, '0'))::uuid,
    (array['themes', 'themes', 'themes', 'themes', 'ocr', 'ocr', 'ocr', 'etl', 'etl', 'speech'])
        [1 + n % 10],
    case when n % 4 = 0 then 'bulk' else 'default' end,
    status, n % 3,
    case when status = 'pending' and n % 10 = 3 then now() + interval '1 hour' else made_at end,
    claims, 2, claims,
    case when claims > 0 then lpad((1 + n % 4)::text, 32, '0')::uuid end,
    made_at,
    case when claims > 0 then least(made_at + wait, now()) end,
    case when status not in ('pending', 'running') then least(made_at + wait + run, now()) end,
    case when n % 20 > 0 then lpad((n % 20)::text, 32, '0')::uuid::text else '' end,
    case when n % 5 = 0 then '{survey,weekly}'::text[] else '{}' end
from (
    select
        n, status, wait, run,
        now() - interval '30 days' * ({jobs} - n) / {jobs} as made_at,
        case status
            when 'pending' then (n % 100 = 0)::int
            when 'failed' then 2
            when 'cancelled' then 0
            else 1
        end as claims
    from (
        select
            n,
            case
                when n > {jobs} - least({jobs} / 50, 1000) then 'pending'
                when n > {jobs} - least({jobs} / 50, 1000) - 40 then 'running'
                when n % 50 = 7 then 'failed'
                when n % 500 = 13 then 'cancelled'
                else 'completed'
            end as status,
            make_interval(secs => -20 * ln(1 - random())) as wait,
            make_interval(secs => -120 * ln(1 - random())) as run
        from generate_series(1, {jobs}::int) n
    ) drawn
) made;

-- name: attempts
-- One for each claim; who failed had failed before.
insert into haulage.job_attempts (
    job_id, claim_no, attempt, node_id, pid, started_at, ended_at, outcome, cause, error_class,
    error_message, traceback, peak_memory_bytes, cpu_seconds, progress_fraction, progress_stage,
    progress_at
)
select
    j.id, claim.claim_no, claim.claim_no, j.node_id, 4000, j.started_at,
    case when is_over then coalesce(j.finished_at, j.started_at) end,
    case when is_over then case when is_good then 'completed' else 'failed' end end,
    case when is_over and not is_good then 'exception' end,
    case when is_over and not is_good then 'ValueError' end,
    case when is_over and not is_good then
        'no column ' || ascii(right(j.id::text, 1)) || e'\nin row ' || j.priority end,
    case when is_over and not is_good then repeat('  File "pipeline.py", line 1, in run' || e'\n', 20)
        end,
    268435456, 42.5, 1, 'insights', coalesce(j.finished_at, j.started_at)
from haulage.jobs j
cross join lateral generate_series(1, j.claim_no) as claim (claim_no)
cross join lateral (
    select
        j.status <> 'running' or claim.claim_no < j.claim_no as is_over,
        j.status = 'completed' and claim.claim_no = j.claim_no as is_good
) fate;

-- name: events
-- Start, one stage and the end of the latest claim.
insert into haulage.job_events (job_id, claim_no, attempt, kind, stage, fraction, created_at)
select j.id, j.claim_no, j.attempt, told.kind, told.stage, told.fraction, told.at
from haulage.jobs j
cross join lateral (
    values
        ('status', 'running', null::float8, j.started_at),
        ('milestone', 'themes', 0.5, j.started_at + interval '5 seconds'),
        ('status', j.status, null, j.finished_at)
) as told (kind, stage, fraction, at)
where told.at is not null
order by told.at;

-- name: usage
-- Two stages with paid calls for one job in four.
insert into haulage.usage
    (job_id, claim_no, stage, model, calls, prompt_tokens, completion_tokens, cost, created_at)
select j.id, j.claim_no, stage, 'small', 12, 9000, 800, 0.0042, j.finished_at
from haulage.jobs j
cross join unnest(array['name', 'assign']) as stage
where j.status = 'completed' and right(j.id::text, 1) in ('0', '4', '8', 'c');
