-- Jobs, nodes and paid calls that the operational queries of docs/worked-queries.md ask about: made
-- up, and as old as they say whenever they are stored.

insert into haulage.api_keys (id, name, prefix, sha256, scopes)
values
    ('00000000-0000-7000-8000-0000000000a1', 'archive', 'demo-a', '\x01', '{submit}'),
    ('00000000-0000-7000-8000-0000000000a2', 'newsroom', 'demo-b', '\x02', '{submit}');

insert into haulage.nodes (id, name, pid, version, capacity, lease_seconds, heartbeat_at)
values
    ('00000000-0000-7000-8000-0000000000b1', 'worker-1', 101, '1.0', 4, 15, now()),
    ('00000000-0000-7000-8000-0000000000b2', 'worker-2', 102, '1.0', 4, 15, now()),
    ('00000000-0000-7000-8000-0000000000b3', 'worker-3', 103, '1.0', 2, 15,
        now() - interval '10 minutes');

-- What ended within a day: job n ended n times 20 minutes ago, after n seconds; one in eight failed.
with
ended as (
    insert into haulage.jobs (
        id, pipeline, queue, status, node_id, claim_no, attempt, submitted_by, run_at, created_at,
        started_at, finished_at
    )
    select
        gen_random_uuid(),
        case when n % 3 = 0 then 'transcription' else 'ocr' end,
        case when n % 3 = 0 then 'audio' else 'scans' end,
        case when n % 8 = 0 then 'failed' else 'completed' end,
        '00000000-0000-7000-8000-0000000000b1', 1, 1,
        '00000000-0000-7000-8000-0000000000a' || 1 + n % 2,
        finished_at - n * interval '1 second' - interval '2 seconds',
        finished_at - n * interval '1 second' - interval '2 seconds',
        finished_at - n * interval '1 second',
        finished_at
    from (
        select n, now() - n * interval '20 minutes' as finished_at from generate_series(1, 60) n
    ) as numbered
    returning id, pipeline, status, node_id, started_at, finished_at
)
insert into haulage.job_attempts (
    job_id, claim_no, attempt, node_id, started_at, ended_at, outcome, cause, error_class,
    error_message, peak_memory_bytes, cpu_seconds
)
select
    id, 1, 1, node_id, started_at, finished_at, status,
    case when status = 'failed' then
        case pipeline when 'ocr' then 'exception' else 'out_of_memory' end
    end,
    case when status = 'failed' and pipeline = 'ocr' then 'PageError' end,
    case when status = 'failed' and pipeline = 'ocr' then
        e'the page cannot be read\nwhile reading scan ' || id
    end,
    case pipeline when 'ocr' then 200 else 1500 end * 1048576::bigint,
    extract(epoch from finished_at - started_at) / 2
from ended;

-- What waits, is to come and runs; one runs on a node that went silent.
insert into haulage.jobs (
    id, pipeline, queue, status, node_id, claim_no, attempt, run_at, created_at, started_at
)
select
    gen_random_uuid(), pipeline, queue, status, node_id::uuid,
    case status when 'running' then 1 else 0 end, case status when 'running' then 1 else 0 end,
    now() + run_in, now() - interval '30 minutes',
    case status when 'running' then now() - interval '20 minutes' end
from (
    values
        ('ocr', 'scans', 'pending', null, interval '-5 minutes', 7),
        ('ocr', 'scans', 'pending', null, interval '2 hours', 3),
        ('transcription', 'audio', 'pending', null, interval '-9 minutes', 2),
        ('transcription', 'audio', 'running', '00000000-0000-7000-8000-0000000000b2',
            interval '-30 minutes', 2),
        ('ocr', 'scans', 'running', '00000000-0000-7000-8000-0000000000b3',
            interval '-30 minutes', 1)
) as wanted (pipeline, queue, status, node_id, run_in, times)
cross join generate_series(1, times);

-- What a language model was paid for: the transcripts were checked by a small one.
insert into haulage.usage (
    job_id, claim_no, key, stage, model, calls, prompt_tokens, completion_tokens, cost
)
select
    id, 1, decode(md5(id::text || stage), 'hex'), stage, 'a-small-model', 1,
    case stage when 'check' then 1200 else 400 end, 150,
    case stage when 'check' then 0.0027 else 0.0015 end
from haulage.jobs
cross join unnest('{check,summarise}'::text[]) as stage
where pipeline = 'transcription' and status = 'completed';
