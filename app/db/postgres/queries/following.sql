-- Following jobs. Whoever writes about a job locks its row before it takes an id, so one job's
-- events and lines commit in the order of their ids; those of several jobs need not. Hence every
-- reader names its place job by job.

-- name: list_news
-- Of the jobs $1 those whose version is no longer $3, each with at most $4 events after $2.
select
    w.n::int as n, j.status, v.version,
    a.progress_fraction, a.progress_stage, a.progress_message,
    e.id as event_id, e.kind, e.attempt, e.stage, e.fraction, e.message, e.created_at
from unnest($1::uuid[], $2::bigint[], $3::text[]) with ordinality as w (job_id, after, version, n)
left join haulage.jobs j on j.id = w.job_id
left join haulage.job_attempts a on a.job_id = j.id and a.claim_no = j.claim_no
left join lateral (
    select max(id) as id from haulage.job_events where job_id = j.id
) last_event on true
-- As in get_job, to the letter.
cross join lateral (
    select to_hex(hashtextextended(row(
        j.status, j.queue, j.priority, j.attempt, j.max_attempts, j.claim_no, j.node_id,
        j.run_at, j.started_at, j.finished_at, j.cancel_requested_at,
        a.pid, a.progress_fraction, a.progress_stage, a.progress_message,
        last_event.id
    )::text, 0)) as version
) v
left join lateral (
    select id, kind, attempt, stage, fraction, message, created_at
    from haulage.job_events
    where job_id = j.id and id > w.after
    order by id
    limit $4
) e on true
where v.version is distinct from w.version
order by w.n, e.id;

-- name: list_lines
-- Of each job in $1 at most $4 log lines after line $2 and at least of level $3, among the next $5
-- lines; a row without a line tells how far was looked.
select
    w.n::int as n, seen.last_id, seen.lines as seen, l.id, l.attempt, l.line_no as number,
    l.level::int as level, l.source, l.line as text, l.at
from unnest($1::uuid[], $2::bigint[], $3::int[]) with ordinality as w (job_id, after, level, n)
-- Where every line fits, no more is looked at than is taken.
cross join lateral (
    select max(id) as last_id, count(*)::int as lines
    from (
        select id
        from haulage.job_logs
        where job_id = w.job_id and id > w.after
        order by id
        limit case when w.level > 0 then $5::int else $4::int end
    ) next
) seen
left join lateral (
    select id, attempt, line_no, level, source, line, at
    from haulage.job_logs
    where job_id = w.job_id and id > w.after and id <= seen.last_id and level >= w.level
    order by id
    limit $4
) l on true
where seen.last_id is not null
order by w.n, l.id;

-- name: find_log_tail
-- The line of job $1, at least of level $3, that $2 such lines follow.
select id
from haulage.job_logs
where job_id = $1 and level >= $3
order by id desc
offset $2
limit 1;

-- name: list_attempts_after
-- At most $3 claims of a job after claim $2, oldest first.
select
    claim_no, attempt, node_id::text as node_id, pid, started_at, ended_at, outcome, cause,
    exit_code, signal, error_class, error_message, traceback, peak_memory_bytes, cpu_seconds
from haulage.job_attempts
where job_id = $1 and claim_no > $2
order by claim_no
limit $3;

-- name: list_checkpoints
-- At most $3 intermediate results of a job after stage $2; their data stays packed in its place.
select stage, claim_no, pg_column_size(data) as stored_bytes, saved_at
from haulage.job_checkpoints
where job_id = $1 and stage > $2
order by stage
limit $3;

-- name: get_checkpoint
-- The intermediate result of stage $2 in bytes, which need no decoding on their way to a client.
select convert_to(data::text, 'UTF8') as data
from haulage.job_checkpoints
where job_id = $1 and stage = $2;
