-- name: announce_pipelines
-- Stores what can run: $8 is for jobs that name none, of those in $9 nothing but the name is known.
insert into haulage.pipelines as known (
    name, max_attempts, timeout_seconds, start_timeout_seconds, stall_seconds,
    memory_limit_bytes, takes_dataset, defaulted_at
)
select
    given.name, given.max_attempts, given.timeout_seconds, given.start_timeout_seconds,
    given.stall_seconds, given.memory_limit_bytes, given.takes_dataset,
    case when given.name = $8::text then clock_timestamp() end
from unnest(
    $1::text[], $2::int4[], $3::float8[], $4::float8[], $5::float8[], $6::int8[], $7::bool[]
) as given (
    name, max_attempts, timeout_seconds, start_timeout_seconds, stall_seconds,
    memory_limit_bytes, takes_dataset
)
-- One order for everybody, so that services that start together do not deadlock.
order by given.name collate "C"
on conflict (name) do update
set (
        max_attempts, timeout_seconds, start_timeout_seconds, stall_seconds,
        memory_limit_bytes, takes_dataset
    ) = (
        -- What others have told of a class stays where it could not be asked here.
        select
            told.max_attempts, told.timeout_seconds, told.start_timeout_seconds,
            told.stall_seconds, told.memory_limit_bytes, told.takes_dataset
        from (
            select known.* where excluded.name = any ($9::text[])
            union all
            select excluded.* where excluded.name <> all ($9::text[])
        ) as told
    ),
    -- The default of others stays until somebody calls another one so.
    defaulted_at = coalesce(excluded.defaulted_at, known.defaulted_at),
    announced_at = now();

-- name: append_logs
-- Lines in their order: numbers $3, instants $4, levels $5, sources $6, texts $7. Those that are
-- stored already, since only the answer of an earlier call got lost, are passed over.
with
held as (
    select j.id, j.claim_no, j.attempt, a.last_line_no
    from haulage.jobs j
    join haulage.job_attempts a on a.job_id = j.id and a.claim_no = j.claim_no
    where j.id = $1 and j.claim_no = $2 and j.status = 'running'
    for no key update of j, a
),
lines as (
    insert into haulage.job_logs
        (job_id, claim_no, attempt, line_no, at, level, source, line)
    select held.id, held.claim_no, held.attempt, l.line_no, l.at, l.level, l.source, l.line
    from held
    cross join unnest($3::integer[], $4::timestamptz[], $5::smallint[], $6::text[], $7::text[])
        as l (line_no, at, level, source, line)
    where l.line_no > held.last_line_no
    order by l.line_no
)
update haulage.job_attempts a
set last_line_no = greatest(held.last_line_no, (select max(n) from unnest($3::integer[]) n))
from held
where a.job_id = held.id and a.claim_no = held.claim_no
returning 1 as held;

-- name: cancel_jobs
-- Of the jobs $1 in a status of $2 cancels the pending at once and notes the wish where they run.
with
-- In the order of ids, so that two of these never wait for each other in a circle; claims pass over
-- what is locked and wait for nobody. A claim or an end that commits meanwhile is seen: what is
-- locked is the row's newest version, and the update evaluates that.
alive as (
    select id
    from haulage.jobs
    where id = any ($1::uuid[]) and status = any ($2) and status in ('pending', 'running')
    order by id
    for no key update
),
asked as (
    update haulage.jobs j
    set status = case when j.status = 'pending' then 'cancelled' else j.status end,
        cancel_requested_at = coalesce(j.cancel_requested_at, now()),
        finished_at = case when j.status = 'pending' then now() end
    from alive
    where j.id = alive.id
    returning j.id, j.claim_no, j.attempt, j.status
),
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
    select id, claim_no, attempt, 'status', status from asked where status = 'cancelled'
),
-- As in finish_job; one that runs is told of when it has ended.
told as (
    insert into haulage.webhook_deliveries (id, job_id, webhook_id, url, event)
    select gen_random_uuid(), asked.id, w.id, w.url, 'job.cancelled'
    from asked
    join haulage.webhooks w on w.is_active and 'job.cancelled' = any (w.events)
    where asked.status = 'cancelled'
)
select id::text as id, status from asked;

-- name: claim_deliveries
-- At most $1 due deliveries for one try, at most $2 of one endpoint, $4 of which are taken for each
-- of endpoints $3. For $5 seconds they are nobody else's: whoever dies in the middle of a try leaves
-- them due again.
with
-- Of each endpoint what there is a place for.
found as materialized (
    select w.id as webhook_id, d.id, d.next_at, coalesce(t.places, 0) as taken
    from haulage.webhooks w
    left join unnest($3::uuid[], $4::integer[]) as t (webhook_id, places) on t.webhook_id = w.id
    cross join lateral (
        select c.id, c.next_at
        from haulage.webhook_deliveries c
        where c.webhook_id = w.id and c.status = 'pending' and c.next_at <= now()
        order by c.next_at
        limit greatest(0, $2 - coalesce(t.places, 0))
        for update skip locked
    ) d
    where w.is_active
),
-- Fair: the first of each endpoint, then the second of each. By age alone the backlogs of endpoints
-- that hang would go before everything of those that answer.
due as materialized (
    select id
    from found
    order by taken + row_number() over (partition by webhook_id order by next_at), next_at
    limit $1
),
claimed as (
    update haulage.webhook_deliveries d
    set attempt = d.attempt + 1, next_at = now() + make_interval(secs => $5)
    from due
    where d.id = due.id
    returning d.id, d.webhook_id, d.job_id, d.event, d.attempt, d.created_at
)
select
    c.id::text as id, c.webhook_id::text as webhook_id, w.url,
    w.secret || array(
        select s.secret
        from haulage.webhook_secrets s
        where s.webhook_id = w.id and s.valid_until > now()
        order by s.valid_until desc, s.secret
    ) as secrets,
    c.job_id::text as job_id, j.pipeline, c.event, c.attempt, c.created_at
from claimed c
join haulage.webhooks w on w.id = c.webhook_id
join haulage.jobs j on j.id = c.job_id
order by c.created_at, c.id;

-- name: claim_pending_jobs
-- Gives node $1 at most $2 due jobs, only of the pipelines $3 where that is not null.
with recursive
-- A node whose lease has ended, that drains or is unknown gets nothing: no job may be owned by
-- a node that rescue already looks past.
claimer as (
    select n.id
    from haulage.nodes n
    where n.id = $1
      and n.state = 'active'
      and n.heartbeat_at + make_interval(secs => n.lease_seconds) > now()
),
paused as materialized (select name from haulage.queues where is_paused),
-- The usual case, where nothing is paused: one walk over all queues that stops at the limit.
-- Fixes the set before anything is written: an `in (select ... limit n)` can be run again by a
-- nested loop and claim more than n. Locked rows belong to another claimer and are passed over.
due as materialized (
    select j.id
    from haulage.jobs j
    where j.status = 'pending'
      and j.run_at <= now()
      and ($3::text[] is null or j.pipeline = any ($3))
      and exists (select from claimer)
      and not exists (select from paused)
    order by j.priority desc, j.run_at, j.id
    limit $2
    for update of j skip locked
),
-- Where something is paused that walk would read all that waits there, 1.5 us a row: queue by queue
-- instead. The names, one step of the index each.
waiting as (
    (
        select j.queue
        from haulage.jobs j
        where j.status = 'pending' and exists (select from claimer) and exists (select from paused)
        order by j.queue
        limit 1
    )
    union all
    select (
        select j.queue
        from haulage.jobs j
        where j.status = 'pending' and j.queue > w.queue
        order by j.queue
        limit 1
    )
    from waiting w
    where w.queue is not null
),
-- The first of each queue that is not held up. Not locked, so some more than are wanted: others may
-- hold a hundred of them at this moment.
candidates as materialized (
    select first.id, first.priority, first.run_at
    from waiting w
    cross join lateral (
        select j.id, j.priority, j.run_at
        from haulage.jobs j
        where j.status = 'pending'
          and j.queue = w.queue
          and j.run_at <= now()
          and ($3::text[] is null or j.pipeline = any ($3))
        order by j.priority desc, j.run_at, j.id
        limit $2 + 100
    ) first
    where w.queue not in (select name from paused)
    order by first.priority desc, first.run_at, first.id
    limit $2 + 100
),
-- One by one in that order, until there are enough. By key, where a join might read the table.
due_beside as materialized (
    select locked.id
    from candidates c
    cross join lateral (
        select j.id from haulage.jobs j where j.id = c.id and j.status = 'pending'
        for update skip locked
    ) locked
    limit $2
),
-- claim_no is the fencing number: it only grows, whatever becomes of the job.
claimed_due as (
    update haulage.jobs j
    set status = 'running',
        claim_no = j.claim_no + 1,
        attempt = j.attempt + 1,
        node_id = $1,
        started_at = now(),
        finished_at = null
    from due
    where j.id = due.id
    returning j.*
),
-- An update of its own: for both sets together the planner would read small tables, and keep the
-- plan when they grow.
claimed_beside as (
    update haulage.jobs j
    set status = 'running',
        claim_no = j.claim_no + 1,
        attempt = j.attempt + 1,
        node_id = $1,
        started_at = now(),
        finished_at = null
    from due_beside
    where j.id = due_beside.id
    returning j.*
),
claimed as (select c.* from claimed_due c union all select b.* from claimed_beside b),
-- The attempt exists from the claim on, so a worker that never comes up leaves a trace.
opened as (
    insert into haulage.job_attempts (job_id, claim_no, attempt, node_id)
    select id, claim_no, attempt, node_id from claimed
),
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
    select id, claim_no, attempt, 'status', 'running' from claimed
)
select
    c.id::text as id,
    c.claim_no,
    c.pipeline,
    c.attempt,
    c.max_attempts,
    c.node_losses,
    c.timeout_seconds,
    c.start_timeout_seconds,
    c.stall_seconds,
    c.memory_limit_bytes,
    c.started_at as claimed_at,
    -- Large payloads do not pass through the scheduler; their worker reads them.
    (
        select case when octet_length(p.payload::text) <= $4 then p.payload::text end
        from haulage.job_payloads p
        where p.job_id = c.id
    ) as payload
from claimed c
order by c.priority desc, c.run_at, c.id;

-- name: close_dataset
-- The last statement of that transaction, when the rows have been counted.
update haulage.datasets set row_count = $2 where id = $1;

-- name: count_cached_calls
-- The claim's calls of stage $3 and model $4 found $5 answers kept so far.
with
held as (
    select id, claim_no
    from haulage.jobs
    where id = $1 and claim_no = $2 and status = 'running'
    for no key update
),
-- Totals that only grow: repeating one, or writing an older one late, changes nothing.
counted as (
    insert into haulage.usage as u (job_id, claim_no, stage, model, cached_calls)
    select id, claim_no, $3, $4, $5 from held
    on conflict (job_id, claim_no, stage, model) where key is null do update
    set cached_calls = greatest(u.cached_calls, excluded.cached_calls)
)
select 1 as held from held;

-- name: count_datasets
-- How many datasets submitter $1 has stored.
select count(*) as datasets
from haulage.datasets
where submitted_by = $1 and submitted_by <> '';

-- name: count_failed_calls
-- Requests of stage $3 and model $4 that gave the claim no answer: $5 so far, at the costs of $6-$8.
with
held as (
    select id, claim_no
    from haulage.jobs
    where id = $1 and claim_no = $2 and status = 'running'
    for no key update
),
-- Totals that only grow, in the row of the calls that found their answers kept.
counted as (
    insert into haulage.usage as u
        (job_id, claim_no, stage, model, calls, prompt_tokens, completion_tokens, cost)
    select id, claim_no, $3, $4, $5, $6, $7, $8::float8 from held
    on conflict (job_id, claim_no, stage, model) where key is null do update
    set
        calls = greatest(u.calls, excluded.calls),
        prompt_tokens = greatest(u.prompt_tokens, excluded.prompt_tokens),
        completion_tokens = greatest(u.completion_tokens, excluded.completion_tokens),
        cost = greatest(u.cost, excluded.cost)
)
select 1 as held from held;

-- name: count_pending
-- What submitter $1 has waiting. The size is that of the stored values: told by their heads, so
-- that no payload is read.
select
    count(*) as jobs, coalesce(sum(pg_column_size(p.payload)), 0)::int8 as size_bytes
from haulage.jobs j
join haulage.job_payloads p on p.job_id = j.id
where j.submitted_by = $1 and j.submitted_by <> '' and j.status = 'pending';

-- name: count_running_jobs
-- Running jobs of node $1, of all nodes where it is null.
select count(*) as n
from haulage.jobs
where status = 'running' and ($1::uuid is null or node_id = $1);

-- name: delete_dataset
-- Removes a dataset that no job needs any more, and says whether there was one and who needs it.
with
-- Locked before anything is decided: a job that names it either is there already or comes too late.
dataset as (
    select id from haulage.datasets where id = $1 for update
),
-- One that begins to name it, or to run again, meanwhile breaks its foreign key: nothing happens.
needed as (
    select 1 from haulage.jobs where dataset_id = $1 and status in ('pending', 'running') limit 1
),
freed as (
    update haulage.jobs set dataset_id = null
    where dataset_id = $1 and status not in ('pending', 'running') and not exists (table needed)
),
gone as (
    delete from haulage.datasets d using dataset
    where d.id = dataset.id and not exists (table needed)
)
select exists (table needed) as is_needed from dataset;

-- name: delete_job
-- Removes a job that has ended, with everything that belongs to it; nothing where it has not.
with
gone as (
    delete from haulage.jobs
    where id = $1 and status in ('completed', 'failed', 'cancelled')
    returning id
),
noted as (
    insert into haulage.deleted_jobs (id) select id from gone
    on conflict (id) do update set deleted_at = now()
)
select 1 as gone from gone;

-- name: delete_webhook
-- The endpoint and its deliveries are forgotten.
delete from haulage.webhooks where id = $1 returning 1 as found;

-- name: deregister_node
-- The node is gone for good; what it still runs is lost.
update haulage.nodes set state = 'stopped', stopped_at = now() where id = $1;

-- name: disable_webhook
-- The endpoint is told no more because of $2. What is pending is given up: whoever enables it
-- replays what is still of interest, instead of being flooded with what has grown old.
with
disabled as (
    update haulage.webhooks set is_active = false, disabled_reason = $2 where id = $1
    returning id
),
given_up as (
    update haulage.webhook_deliveries d
    set status = 'failed', last_error = $2
    from disabled
    where d.webhook_id = disabled.id and d.status = 'pending'
)
select 1 as found from disabled;

-- name: drain_node
-- The node claims nothing any more.
update haulage.nodes set state = 'draining' where id = $1 and state = 'active';

-- name: enable_webhook
-- The endpoint is told again.
update haulage.webhooks set is_active = true, disabled_reason = null where id = $1
returning 1 as found;

-- name: end_try
-- What became of try $2 of delivery $1; nothing where a later one has begun.
update haulage.webhook_deliveries
set status = $3,
    next_at = now() + make_interval(secs => $4),
    delivered_at = case when $3 = 'delivered' then now() end,
    last_status_code = $5,
    last_error = $6
where id = $1 and attempt = $2 and status = 'pending'
returning 1 as held;

-- name: find_jobs_by_key
-- The jobs that idempotency keys have made; a statement of its own after the insert that found the
-- keys taken: that one's snapshot may be older than what it waited for.
select job.submitted_by, job.idempotency_key, job.id, job.payload_hash, job.batch_id
from unnest($1::text[], $2::text[]) as asked (submitted_by, idempotency_key)
join haulage.jobs as job using (submitted_by, idempotency_key)
where job.idempotency_key is not null;

-- name: find_key
-- The active key with SHA-256 $1.
select
    id::text as id, name, prefix, scopes, max_pending_jobs, max_pending_bytes,
    created_at, last_used_at, revoked_at
from haulage.api_keys
where sha256 = $1 and revoked_at is null;

-- name: find_log_tail
-- The line of job $1, at least of level $3, that $2 such lines follow.
select id
from haulage.job_logs
where job_id = $1 and level >= $3
order by id desc
offset $2
limit 1;

-- name: find_lost_job
-- Whether a claim runs on a lost node. A lease that has ended is never renewed, nor does a stopped
-- node come back: what this finds stays true until the claim is ended.
select 1 as held
from haulage.jobs j
where j.id = $1 and j.claim_no = $2 and j.status = 'running'
  and not exists (
      select
      from haulage.nodes n
      where n.id = j.node_id
        and n.state <> 'stopped'
        and n.heartbeat_at + make_interval(secs => n.lease_seconds) > now()
  );

-- name: finish_job
-- The end of an attempt, all of it or nothing: status, attempt row, result, event.
with
-- A job that is to be cancelled gets no further attempt. Decided here, under the row's lock: a wish
-- that comes before this statement is seen, one that comes after finds the job pending.
ended as (
    update haulage.jobs
    set status = case when $3 = 'pending' and cancel_requested_at is not null
            then 'cancelled' else $3 end,
        attempt = attempt + $4,
        node_losses = node_losses + $5,
        run_at = case when $3 = 'pending' and cancel_requested_at is null
            then now() + make_interval(secs => $6) else run_at end,
        finished_at = case when $3 <> 'pending' or cancel_requested_at is not null then now() end
    where id = $1 and claim_no = $2 and status = 'running'
    returning id, claim_no, attempt, status
),
-- The attempt keeps the number under which it ran; a refund concerns the job's count only.
closed as (
    update haulage.job_attempts a
    set ended_at = now(),
        outcome = $7,
        cause = $8,
        exit_code = $9,
        signal = $10,
        error_class = $11,
        error_message = $12,
        traceback = $13,
        peak_memory_bytes = $14,
        cpu_seconds = $15,
        progress_fraction = case when $7 = 'completed' then 1 else progress_fraction end
    from ended
    where a.job_id = ended.id and a.claim_no = ended.claim_no
    returning a.attempt
),
-- A retried job may have left a result of an earlier life.
stored as (
    insert into haulage.job_results (job_id, claim_no, result)
    select id, claim_no, $16::jsonb from ended where $16::text is not null
    on conflict (job_id) do update
    set claim_no = excluded.claim_no, result = excluded.result, created_at = now()
),
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage, message)
    select ended.id, ended.claim_no, closed.attempt, 'status', ended.status, $12
    from ended cross join closed
),
-- Nothing where no endpoint is told of it: a look at an empty table.
told as (
    insert into haulage.webhook_deliveries (id, job_id, webhook_id, url, event)
    select gen_random_uuid(), ended.id, w.id, w.url, 'job.' || ended.status
    from ended
    join haulage.webhooks w on w.is_active and 'job.' || ended.status = any (w.events)
)
select 1 as held from ended;

-- name: get_batch
-- How many jobs of a batch are in which status.
select
    batch_id::text as id,
    count(*) as total,
    count(*) filter (where status = 'pending') as pending,
    count(*) filter (where status = 'running') as running,
    count(*) filter (where status = 'completed') as completed,
    count(*) filter (where status = 'failed') as failed,
    count(*) filter (where status = 'cancelled') as cancelled,
    min(created_at) as created_at
from haulage.jobs
where batch_id = $1
group by batch_id;

-- name: get_checkpoint
-- The intermediate result of stage $2 in bytes, which need no decoding on their way to a client.
select convert_to(data::text, 'UTF8') as data
from haulage.job_checkpoints
where job_id = $1 and stage = $2;

-- name: get_dataset
-- What is known of a dataset.
select
    id::text as id, name, columns, row_count, detected::text as detected,
    encode(sha256, 'hex') as sha256, created_at
from haulage.datasets
where id = $1;

-- name: get_dataset_submitter
-- Who stored dataset $1.
select submitted_by from haulage.datasets where id = $1;

-- name: get_job
-- A job with the state of its latest attempt.
select
    j.id::text as id, j.status, j.pipeline, j.queue, j.priority::int as priority,
    j.attempt, j.max_attempts, j.claim_no, j.node_losses,
    j.node_id::text as node_id, a.pid,
    j.timeout_seconds, j.start_timeout_seconds, j.stall_seconds, j.memory_limit_bytes,
    j.tags, j.metadata::text as metadata,
    j.created_at, j.run_at, j.started_at, j.finished_at, j.cancel_requested_at,
    a.progress_fraction, a.progress_stage, a.progress_message,
    a.error_class, a.error_message, a.traceback, a.cause,
    -- Changes with everything here that can change, and with every milestone.
    to_hex(hashtextextended(row(
        j.status, j.queue, j.priority, j.attempt, j.max_attempts, j.claim_no, j.node_id,
        j.run_at, j.started_at, j.finished_at, j.cancel_requested_at,
        a.pid, a.progress_fraction, a.progress_stage, a.progress_message,
        last_event.id
    )::text, 0)) as version,
    coalesce(last_event.id, 0) as last_event_id,
    j.batch_id::text as batch_id, j.submitted_by
from haulage.jobs j
left join haulage.job_attempts a on a.job_id = j.id and a.claim_no = j.claim_no
left join lateral (
    select max(id) as id from haulage.job_events where job_id = j.id
) last_event on true
where j.id = $1;

-- name: get_payload
-- The payload of a job.
select payload::text as payload from haulage.job_payloads where job_id = $1;

-- name: get_result_state
-- Where the job is, and which claim left its result.
select j.status, r.claim_no
from haulage.jobs j
left join haulage.job_results r on r.job_id = j.id and j.status = 'completed'
where j.id = $1;

-- name: get_result_themes
-- The themes of an analysis with its counts, without where each row went.
with
-- Materialized, or each use of it would unpack the whole result.
head as materialized (
    select r.result - 'assignments' as head
    from haulage.jobs j
    join haulage.job_results r on r.job_id = j.id
    where j.id = $1 and j.status = 'completed' and jsonb_typeof(r.result) = 'object'
)
select jsonb_build_object(
    'question', head -> 'question',
    'labelling', head -> 'labelling',
    'input', head -> 'input',
    'themes', head -> 'themes',
    'other', (head -> 'other') - 'sample' - 'suggested',
    'failed', head -> 'failed',
    'non_answers', (head -> 'non_answers') - 'texts',
    'insights', head -> 'insights',
    'metrics', head -> 'metrics',
    'warnings', head -> 'warnings'
)::text as themes
from head
where head ->> 'schema' = 'themes/1';

-- name: get_status
-- The status of a job.
select status from haulage.jobs where id = $1;

-- name: get_submitter
-- Who submitted job $1.
select submitted_by from haulage.jobs where id = $1;

-- name: get_theme_quotes
-- Theme $2 of an analysis without its quotes, and at most $3 of these after the first $4.
with
themes as materialized (
    select jsonb_path_query(
        r.result,
        '$ ? (@.schema == "themes/1").themes[*] ? (@.id == $id)',
        jsonb_build_object('id', $2::text)
    ) as theme
    from haulage.jobs j
    join haulage.job_results r on r.job_id = j.id
    where j.id = $1 and j.status = 'completed'
    limit 1
)
select
    (theme - 'quotes')::text as theme,
    jsonb_path_query_array(
        theme,
        '$.quotes[$first to $last]',
        jsonb_build_object('first', $4::integer, 'last', $4::integer + $3::integer - 1)
    )::text as items,
    least(greatest(jsonb_array_length(theme -> 'quotes') - $4::integer, 0), $3::integer) as count,
    jsonb_array_length(theme -> 'quotes') > $4::integer + $3::integer as has_more
from themes;

-- name: give_back_try
-- Try $2 of delivery $1 was broken off by its own process: it does not count, and is due at once.
update haulage.webhook_deliveries
set attempt = attempt - 1, next_at = now()
where id = $1 and attempt = $2 and status = 'pending';

-- name: has_keys
-- Whether there is any key, also a revoked one.
select exists (select from haulage.api_keys) as found;

-- name: hold_webhook
-- Before rotate_secret, in its transaction: of two rotations of endpoint $1 the second one waits here.
select 1 as found from haulage.webhooks where id = $1 for no key update;

-- name: insert_dataset
-- What is known of a dataset; its rows follow in the same transaction.
insert into haulage.datasets (id, name, sha256, detected, columns, row_count, submitted_by)
values ($1, $2, $3, $4::jsonb, $5, 0, $6)
returning created_at;

-- name: insert_key
-- A new key $1 named $2, shown as $3, with SHA-256 $4, scopes $5 and caps $6, $7.
insert into haulage.api_keys
    (id, name, prefix, sha256, scopes, max_pending_jobs, max_pending_bytes)
values ($1, $2, $3, $4, $5, $6, $7)
returning
    id::text as id, name, prefix, scopes, max_pending_jobs, max_pending_bytes,
    created_at, last_used_at, revoked_at;

-- name: insert_pending_jobs
-- Stores jobs with their payloads and gives the ids of those that are new. Ids are the caller's:
-- repeating the statement after a lost answer finds the rows and changes nothing.
with
-- Whoever holds an idempotency key in an open transaction holds up the whole statement: members of
-- a group bound that wait, to go on one by one. It ends with the transaction.
bound as materialized (
    select set_config('lock_timeout', coalesce($1, current_setting('lock_timeout')), true) as wait
),
job as (
    insert into haulage.jobs (
        id, pipeline, queue, priority, run_at, max_attempts,
        timeout_seconds, start_timeout_seconds, stall_seconds, memory_limit_bytes,
        tags, metadata, submitted_by, idempotency_key, payload_hash, dataset_id, batch_id
    )
    select
        given.id, given.pipeline, given.queue, given.priority,
        -- A delay counts on the database's clock, never on the caller's.
        coalesce(given.run_at, now()) + make_interval(secs => given.delay_seconds),
        given.max_attempts,
        given.timeout_seconds, given.start_timeout_seconds, given.stall_seconds,
        given.memory_limit_bytes,
        array(
            select tag.value
            from jsonb_array_elements_text(given.tags::jsonb) with ordinality as tag (value, n)
            order by tag.n
        ),
        given.metadata::jsonb, given.submitted_by, given.idempotency_key, given.payload_hash,
        given.dataset_id, $2
    from bound, unnest(
        $3::uuid[], $4::text[], $5::text[], $6::int2[], $7::timestamptz[], $8::float8[],
        $9::int4[], $10::float8[], $11::float8[], $12::float8[], $13::int8[], $14::text[],
        $15::text[], $16::text[], $17::text[], $18::bytea[], $19::uuid[]
    ) as given (
        id, pipeline, queue, priority, run_at, delay_seconds,
        max_attempts, timeout_seconds, start_timeout_seconds, stall_seconds, memory_limit_bytes,
        tags, metadata, submitted_by, idempotency_key, payload_hash, dataset_id
    )
    where bound.wait is not null
    -- Everybody takes keys in one order, so that two groups with the same ones do not deadlock.
    order by given.submitted_by collate "C", given.idempotency_key collate "C", given.id
    -- Of the id: ours, from a call whose answer got lost. Of the key: somebody was there before,
    -- or is in this statement, too. A rival's open transaction is waited for.
    on conflict do nothing
    returning id
),
-- The submission is the first line of a job's story.
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
    select id, 0, 0, 'status', 'pending' from job
),
payload as (
    insert into haulage.job_payloads (job_id, payload)
    select job.id, given.payload::jsonb
    from job
    join unnest($3::uuid[], $20::text[]) as given (id, payload) using (id)
)
select id from job;

-- name: insert_webhook
-- A new endpoint.
insert into haulage.webhooks (id, url, events, secret)
values ($1, $2, $3, $4)
returning id::text as id, url, events, is_active, disabled_reason, created_at;

-- name: is_deleted
-- Whether a job is known to have been deleted.
select 1 as deleted from haulage.deleted_jobs where id = $1;

-- name: list_assignments
-- At most $2 assignments of an analysis after the first $3, and whether others follow.
with
-- One more than asked for tells whether there are more.
page as materialized (
    select jsonb_path_query_array(
        r.result,
        '$ ? (@.schema == "themes/1").assignments[$first to $last]',
        jsonb_build_object('first', $3::integer, 'last', $3::integer + $2::integer)
    ) as items, r.result ->> 'schema' = 'themes/1' as is_analysis
    from haulage.jobs j
    join haulage.job_results r on r.job_id = j.id
    where j.id = $1 and j.status = 'completed'
)
select
    (items - $2::integer)::text as items,
    least(jsonb_array_length(items), $2::integer) as count,
    jsonb_array_length(items) > $2::integer as has_more
from page
where is_analysis;

-- name: list_attempts
-- Every claim of a job, oldest first.
select
    claim_no, attempt, node_id::text as node_id, pid, started_at, ended_at, outcome, cause,
    exit_code, signal, error_class, error_message, traceback, peak_memory_bytes, cpu_seconds
from haulage.job_attempts
where job_id = $1
order by claim_no;

-- name: list_attempts_after
-- At most $3 claims of a job after claim $2, oldest first.
select
    claim_no, attempt, node_id::text as node_id, pid, started_at, ended_at, outcome, cause,
    exit_code, signal, error_class, error_message, traceback, peak_memory_bytes, cpu_seconds
from haulage.job_attempts
where job_id = $1 and claim_no > $2
order by claim_no
limit $3;

-- name: list_checkpoint_stages
-- The stages that a job has a checkpoint of, in the order of saving.
select stage from haulage.job_checkpoints where job_id = $1 order by saved_at, stage;

-- name: list_checkpoints
-- At most $3 intermediate results of a job after stage $2; their data stays packed in its place.
select stage, claim_no, pg_column_size(data) as stored_bytes, saved_at
from haulage.job_checkpoints
where job_id = $1 and stage > $2
order by stage
limit $3;

-- name: list_dataset_json
-- At most $3 rows after row $2, each as a JSON list, as far as they fit into $4 bytes; one at least.
select row_no, text
from (
    select
        row_no, cells.text,
        sum(octet_length(cells.text)) over (order by row_no) as bytes,
        row_number() over (order by row_no) as n
    from (
        select r.row_no, to_json(r.cells)::text as text
        from haulage.dataset_rows r
        where r.dataset_id = $1 and r.row_no > $2
        order by r.row_no
        limit $3
    ) cells
) measured
where bytes <= $4 or n = 1
order by row_no;

-- name: list_dataset_rows
-- At most $4 rows after row $3, and of each the cells at the positions $2, counted from 1.
select
    r.row_no,
    array(
        select r.cells[wanted.position]
        from unnest($2::integer[]) with ordinality as wanted (position, n)
        order by wanted.n
    ) as cells
from haulage.dataset_rows r
where r.dataset_id = $1 and r.row_no > $3
order by r.row_no
limit $4;

-- name: list_datasets
-- At most $1 datasets older than $2 where that is given, the newest first.
select id::text as id, name, row_count, cardinality(columns) as column_count, created_at
from haulage.datasets
where $2::uuid is null or id < $2
order by datasets.id desc
limit $1;

-- name: list_datasets_of_file
-- At most $2 datasets that came from the file with sha256 $1, the newest first.
select
    d.id::text as id, d.name, d.columns, d.row_count, d.detected::text as detected,
    encode(d.sha256, 'hex') as sha256, d.created_at
from haulage.datasets d
where d.sha256 = $1
order by d.id desc -- of the table: the index has no texts
limit $2;

-- name: list_deliveries
-- At most $2 deliveries to endpoint $1, only those older than instant $3 and id $4 where not null.
select
    id::text as id, webhook_id::text as webhook_id, job_id::text as job_id, event, status,
    attempt, next_at, delivered_at, last_status_code, last_error, created_at
from haulage.webhook_deliveries
where webhook_id = $1
  and ($3::timestamptz is null or (created_at, id) < ($3, $4::uuid))
order by created_at desc, id desc
limit $2;

-- name: list_index_sizes
-- Our indexes with what they would take newly built, the most to be gained first.
--
-- The estimate counts what a B-tree page holds: 8 kB without its header (24 bytes) and the tree's own
-- part (16), filled to 90 %; each entry has a line pointer (4), a header (8) and the columns' average
-- widths, rounded up to 8. So does btree_bloat.sql of ioguix/pgsql-bloat-estimation. Entries that
-- share a value are stored once, which the estimate does not know: it tells too little bloat there.
with
entry as (
    select
        i.indexrelid,
        -- Unknown where one of the widths is: the table was never analyzed.
        case when bool_and(w.avg_width is not null) then sum(w.avg_width) end as width
    from pg_index i
    join pg_class t on t.oid = i.indrelid and t.relnamespace = to_regnamespace('haulage')
    join pg_class c on c.oid = i.indexrelid
    join pg_attribute a on a.attrelid = i.indexrelid
    left join pg_attribute source
        on source.attrelid = i.indrelid and source.attnum = i.indkey[a.attnum - 1]
    -- Expressions have statistics under the index's own name.
    left join pg_stats w
        on w.schemaname = 'haulage'
        and (w.tablename, w.attname) in (
            (t.relname, source.attname),
            (c.relname, a.attname)
        )
    group by i.indexrelid
),
size as (
    select
        c.oid,
        t.relname::text as table_name,
        c.relname::text as name,
        i.indisvalid as is_valid,
        pg_relation_size(c.oid) as bytes,
        -- The first page is the tree's own. What operators have added may be no B-tree.
        case when m.amname = 'btree' then
            8192 * (1 + ceil(
                nullif(c.reltuples, -1) * (4 + 8 * ceil((8 + e.width) / 8.0))
                / ((8192 - 24 - 16) * 0.9)
            ))::bigint
        end as expected_bytes
    from entry e
    join pg_index i on i.indexrelid = e.indexrelid
    join pg_class c on c.oid = i.indexrelid
    join pg_am m on m.oid = c.relam
    join pg_class t on t.oid = i.indrelid
)
select
    table_name, name, is_valid, bytes, expected_bytes,
    -- Not `greatest` alone: for it nothing known would be nothing to be gained.
    case when expected_bytes is not null then greatest(0, bytes - expected_bytes) end as bloat_bytes
from size
order by bloat_bytes desc nulls last, name;

-- name: list_keys
-- All keys in the order of their making.
select
    id::text as id, name, prefix, scopes, max_pending_jobs, max_pending_bytes,
    created_at, last_used_at, revoked_at
from haulage.api_keys
order by id;

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

-- name: list_logs
-- The last $2 lines of a job's log, oldest first.
select line_no as number, level::int as level, source, line as text, at
from (
    select id, line_no, level, source, line, at
    from haulage.job_logs
    where job_id = $1
    order by id desc
    limit $2
) last_lines
order by id;

-- name: list_lost_jobs
-- Running jobs, at most $1, whose node can no longer speak for them.
select
    j.id::text as id, j.claim_no, j.node_id::text as node_id, j.attempt, j.max_attempts,
    j.node_losses,
    extract(epoch from now() - j.started_at)::float8 as run_seconds,
    j.cancel_requested_at is not null as cancel_requested
from haulage.jobs j
where j.status = 'running'
  and not exists (
      select
      from haulage.nodes n
      where n.id = j.node_id
        and n.state <> 'stopped'
        and n.heartbeat_at + make_interval(secs => n.lease_seconds) > now()
  )
order by j.started_at
limit $1;

-- name: list_milestones
-- The stages that a job entered, oldest first.
select id, attempt, stage, fraction, message, created_at
from haulage.job_events
where job_id = $1 and kind = 'milestone'
order by id;

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

-- name: list_nodes
-- At most $2 nodes, node $1 alone where it is not null; those that live first, the newest first.
-- Where they are not null only those behind node $4, which lived or not ($3).
select
    n.id::text as id, n.name, n.pid, n.version,
    case when n.state = 'stopped' or n.has_lease then n.state else 'lost' end as state,
    n.capacity,
    (
        select count(*) from haulage.jobs j where j.status = 'running' and j.node_id = n.id
    ) as running,
    n.lease_seconds,
    extract(epoch from now() - n.heartbeat_at)::float8 as heartbeat_seconds,
    n.started_at, n.stopped_at
from (
    select
        id, name, pid, version, state, capacity, lease_seconds, heartbeat_at, started_at,
        stopped_at,
        heartbeat_at + make_interval(secs => lease_seconds) > now() as has_lease
    from haulage.nodes
    where $1::uuid is null or id = $1
) n
where $3::boolean is null or ((n.state <> 'stopped' and n.has_lease), n.id) < ($3, $4::uuid)
order by (n.state <> 'stopped' and n.has_lease) desc, n.id desc
limit $2;

-- name: list_queues
-- At most $2 queues after name $1 that have jobs to do or were paused, by name. Ended jobs are not
-- looked at, and of those that wait in a queue $3 and one more at most.
with recursive
-- From name to name in the index, however many jobs have each of them.
waiting (queue) as (
    (
        select queue from haulage.jobs where status = 'pending' and queue > $1
        order by queue limit 1
    )
    union all
    select (
        select queue from haulage.jobs where status = 'pending' and queue > w.queue
        order by queue limit 1
    )
    from waiting w
    where w.queue is not null
),
-- As many as nodes have room for.
busy as (
    select queue, count(*) as running from haulage.jobs where status = 'running' group by queue
),
named (name) as (
    (select name from haulage.queues where name > $1 order by name limit $2)
    union
    (select queue from waiting where queue is not null limit $2)
    union
    select queue from busy where queue > $1
    order by 1
    limit $2
)
select
    name, coalesce(q.is_paused, false) as is_paused,
    w.pending, w.scheduled,
    coalesce(b.running, 0) as running,
    w.seconds as oldest_pending_seconds,
    w.is_exact
from named
left join haulage.queues q using (name)
left join busy b on b.queue = named.name
-- In the order of claims, which an index has.
cross join lateral (
    select
        count(*) filter (where place <= $3) as pending,
        count(*) filter (where place <= $3 and run_at > now()) as scheduled,
        extract(epoch from
            now() - min(run_at) filter (where place <= $3 and run_at <= now())
        )::float8 as seconds,
        count(*) <= $3 as is_exact
    from (
        select run_at, row_number() over () as place
        from (
            select run_at
            from haulage.jobs
            where status = 'pending' and queue = named.name
            order by priority desc, run_at, id
            limit $3::bigint + 1
        ) next
    ) placed
) w
order by name;

-- name: list_result_pieces
-- A result as it is sent, in order, in pieces of $2 bytes: nobody has to copy it in one go.
select substring(stored.result from piece.n * $2::integer + 1 for $2::integer) as piece
from (
    select convert_to(r.result::text, 'UTF8') as result
    from haulage.jobs j
    join haulage.job_results r on r.job_id = j.id
    where j.id = $1 and j.status = 'completed'
    offset 0 -- keeps it a step of its own: made once, not for each piece
) stored,
lateral generate_series(0, (octet_length(stored.result) - 1) / $2::integer) as piece (n)
order by piece.n;

-- name: list_running_jobs
-- What the database believes to run on node $1.
select
    id::text as id, claim_no, node_id::text as node_id, attempt, max_attempts, node_losses,
    extract(epoch from now() - started_at)::float8 as run_seconds,
    cancel_requested_at is not null as cancel_requested
from haulage.jobs
where status = 'running' and node_id = $1;

-- name: list_snapshots
-- Who keeps dead rows of this database from being cleaned up, the oldest first.
select
    'session' as kind,
    a.application_name as name,
    a.pid,
    a.usename::text as owner,
    a.state,
    a.xact_start as since,
    a.query_start as query_started_at,
    extract(epoch from now() - a.xact_start)::float8 as age_seconds,
    -- A transaction that wrote holds its own number, whatever it still reads.
    greatest(age(a.backend_xmin), age(a.backend_xid)) as age_transactions,
    left(a.query, 200) as query
from pg_stat_activity a
where (a.backend_xmin is not null or a.backend_xid is not null)
  and a.pid <> pg_backend_pid()
  -- What a standby holds back belongs to no database.
  and (a.datname = current_database() or a.datid is null or a.datid = 0)
  and a.backend_type <> 'autovacuum worker'
union all
select
    'prepared transaction', p.gid, null, p.owner::text, 'prepared', p.prepared, null,
    extract(epoch from now() - p.prepared)::float8, age(p.transaction), null
from pg_prepared_xacts p
where p.database = current_database()
union all
select
    'replication slot', s.slot_name::text, s.active_pid, null,
    case when s.active then 'active' else 'inactive' end, null, null,
    null, age(s.xmin), null
from pg_replication_slots s
where s.xmin is not null
order by age_transactions desc, since;

-- name: list_table_sizes
-- Our tables, the largest first; row counts are the server's estimates.
select
    c.relname::text as name,
    s.n_live_tup as rows,
    s.n_dead_tup as dead_rows,
    -- With its maps, without its TOAST table.
    pg_table_size(c.oid) - coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0)
        as table_bytes,
    pg_indexes_size(c.oid) as index_bytes,
    coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0) as toast_bytes,
    greatest(s.last_vacuum, s.last_autovacuum) as vacuumed_at,
    greatest(s.last_analyze, s.last_autoanalyze) as analyzed_at
from pg_class c
join pg_stat_all_tables s on s.relid = c.oid
where c.relnamespace = to_regnamespace('haulage') and c.relkind = 'r'
order by pg_total_relation_size(c.oid) desc, c.relname;

-- name: list_usage
-- What a job's calls cost in all its attempts, by stage and model in the order of their first ones.
select
    stage, model,
    sum(calls)::bigint as calls,
    sum(cached_calls)::bigint as cached_calls,
    sum(prompt_tokens)::bigint as prompt_tokens,
    sum(completion_tokens)::bigint as completion_tokens,
    sum(cost)::float8 as cost
from haulage.usage
where job_id = $1
group by stage, model
order by min(id);

-- name: list_webhooks
-- All endpoints, or endpoint $1 where that is not null.
select id::text as id, url, events, is_active, disabled_reason, created_at
from haulage.webhooks
where $1::uuid is null or id = $1
order by id;

-- name: load_call
-- The answer that any job has kept under key $1.
select answer::text as answer from haulage.call_cache where key = $1;

-- name: load_checkpoint
-- The intermediate result of stage $2, whichever attempt saved it.
select data::text as data
from haulage.job_checkpoints
where job_id = $1 and stage = $2;

-- name: load_payload
-- The payload of a claimed job, for workers whose payload was too large to cross with the claim.
select p.payload::text as payload
from haulage.jobs j
join haulage.job_payloads p on p.job_id = j.id
where j.id = $1 and j.claim_no = $2 and j.status = 'running';

-- name: note_key_use
-- The key was used; written once a minute at most, however many processes serve it.
update haulage.api_keys
set last_used_at = now()
where id = $1 and (last_used_at is null or last_used_at < now() - interval '1 minute');

-- name: pause_queue
-- Nothing of queue $1 is claimed any more.
insert into haulage.queues as q (name, is_paused) values ($1, true)
on conflict (name) do update set is_paused = true, updated_at = now() where not q.is_paused;

-- name: prune_calls
-- At most $2 answers that were kept more than $1 seconds ago.
with
turn as materialized (select pg_try_advisory_xact_lock(7521421961321608302) as is_ours),
old as materialized (
    select c.key
    from haulage.call_cache c
    where c.created_at < now() - make_interval(secs => $1) and (select is_ours from turn)
    order by c.created_at
    limit $2
    for update skip locked
),
gone as (
    delete from haulage.call_cache where key = any (array(select key from old)) returning key
)
select count(*) as n from gone;

-- name: prune_datasets
-- At most $2 datasets that were stored more than $1 seconds ago and that no job names.
with
turn as materialized (select pg_try_advisory_xact_lock(7521421961321608302) as is_ours),
old as materialized (
    select d.id
    from haulage.datasets d
    where d.created_at < now() - make_interval(secs => $1)
      and (select is_ours from turn)
      and not exists (select from haulage.jobs j where j.dataset_id = d.id)
      and not exists (
          select
          from haulage.job_payloads p
          where p.payload ? 'dataset' and p.payload #>> '{dataset,id}' = d.id::text
      )
    order by d.created_at
    limit $2
    for update skip locked
),
gone as (
    delete from haulage.datasets where id = any (array(select id from old)) returning id
)
select count(*) as n from gone;

-- name: prune_jobs
-- At most $3 jobs that ended as $1 more than $2 seconds ago, with everything that belongs to them.
with
turn as materialized (select pg_try_advisory_xact_lock(7521421961321608302) as is_ours),
old as materialized (
    select j.id
    from haulage.jobs j
    where j.status = $1
      and j.finished_at < now() - make_interval(secs => $2)
      and (select is_ours from turn)
    order by j.finished_at
    limit $3
    for update skip locked
),
-- By key, where a join might read the whole table.
gone as (
    delete from haulage.jobs where id = any (array(select id from old)) returning id
),
noted as (
    insert into haulage.deleted_jobs (id) select id from gone
    on conflict (id) do update set deleted_at = now()
)
select count(*) as n from gone;

-- name: prune_nodes
-- At most $2 nodes that were last heard of more than $1 seconds ago and of which no job runs.
with
turn as materialized (select pg_try_advisory_xact_lock(7521421961321608302) as is_ours),
old as materialized (
    select n.id
    from haulage.nodes n
    where now() - make_interval(secs => $1) > case
            when n.state = 'stopped' then n.stopped_at
            else n.heartbeat_at + make_interval(secs => n.lease_seconds)
        end
      and (select is_ours from turn)
      and not exists (
          select from haulage.jobs j where j.status = 'running' and j.node_id = n.id
      )
    limit $2
    for update skip locked
),
gone as (
    delete from haulage.nodes where id = any (array(select id from old)) returning id
)
select count(*) as n from gone;

-- name: prune_tombstones
-- At most $2 ids of jobs that were deleted more than $1 seconds ago.
with
turn as materialized (select pg_try_advisory_xact_lock(7521421961321608302) as is_ours),
old as materialized (
    select t.id
    from haulage.deleted_jobs t
    where t.deleted_at < now() - make_interval(secs => $1) and (select is_ours from turn)
    order by t.deleted_at
    limit $2
    for update skip locked
),
gone as (
    delete from haulage.deleted_jobs where id = any (array(select id from old)) returning id
)
select count(*) as n from gone;

-- name: register_node
-- A new node $1; its lease runs from now.
insert into haulage.nodes (id, name, pid, version, capacity, lease_seconds)
values ($1, $2, $3, $4, $5, $6);

-- name: renew_node
-- Extends the lease, but never one that has ended: other nodes may already rescue its jobs.
update haulage.nodes
set heartbeat_at = now()
where id = $1
  and state <> 'stopped'
  and heartbeat_at + make_interval(secs => lease_seconds) > now()
returning 1 as held;

-- name: replay_delivery
-- An ended delivery to an active endpoint is due again; says what it was, nothing where there is
-- none.
with
replayed as (
    update haulage.webhook_deliveries d
    set status = 'pending', attempt = 0, next_at = now(), delivered_at = null
    from haulage.webhooks w
    where d.id = $1 and d.status <> 'pending' and w.id = d.webhook_id and w.is_active
    returning d.id
)
select
    case
        when exists (select from replayed) then 'replayed'
        when not w.is_active then 'switched-off'
        else 'pending'
    end as outcome
from haulage.webhook_deliveries d
join haulage.webhooks w on w.id = d.webhook_id
where d.id = $1;

-- name: report_progress
-- Latest progress of the attempt; where $6 is true and the stage is new it is also kept for good.
with
held as (
    select j.id, j.claim_no, j.attempt, a.progress_stage
    from haulage.jobs j
    join haulage.job_attempts a on a.job_id = j.id and a.claim_no = j.claim_no
    where j.id = $1 and j.claim_no = $2 and j.status = 'running'
    for no key update of j, a
),
-- A report that is repeated because its answer got lost finds its stage entered already: also where
-- the first one had yet to commit, since the attempt's row is read again under its lock.
milestone as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage, fraction, message)
    select id, claim_no, attempt, 'milestone', $4, $3, $5
    from held
    where $6 and progress_stage is distinct from $4
)
update haulage.job_attempts a
set progress_fraction = $3,
    progress_stage = $4,
    progress_message = $5,
    progress_at = now()
from held
where a.job_id = held.id and a.claim_no = held.claim_no
returning 1 as held;

-- name: report_started
-- The worker process $3 is up and holds the claim.
with held as (
    select id, claim_no
    from haulage.jobs
    where id = $1 and claim_no = $2 and status = 'running'
    for no key update
)
update haulage.job_attempts a
set pid = $3
from held
where a.job_id = held.id and a.claim_no = held.claim_no
returning 1 as held;

-- name: resume_queue
-- Queue $1 is claimed from again.
update haulage.queues set is_paused = false, updated_at = now() where name = $1 and is_paused;

-- name: retry_jobs
-- Makes the jobs $1 that have ended in a status of $2 pending again with a fresh budget. Where caps of
-- jobs ($3) and bytes ($4) are given, a submitter gets no more than fit under them or under its own;
-- those that do not fit stay as they are and say why.
with
ended as (
    select id, status, submitted_by
    from haulage.jobs
    where id = any ($1::uuid[]) and status = any ($2)
      and status in ('completed', 'failed', 'cancelled')
    order by id
    for no key update
),
-- As count_pending counts, against what a key may have; once a submitter, not once a job.
room as materialized (
    select
        s.submitted_by,
        coalesce(k.max_pending_jobs, $3::bigint) - w.jobs as jobs,
        coalesce(k.max_pending_bytes, $4::bigint) - w.size_bytes as size_bytes
    from (select distinct submitted_by from ended where submitted_by <> '') s
    left join haulage.api_keys k on k.id::text = s.submitted_by
    cross join lateral (
        select count(*) as jobs, coalesce(sum(pg_column_size(p.payload)), 0) as size_bytes
        from haulage.jobs j
        join haulage.job_payloads p on p.job_id = j.id
        where j.submitted_by = s.submitted_by and j.submitted_by <> '' and j.status = 'pending'
    ) w
    where $3 is not null
),
-- What would not even fit alone takes no room from those behind it.
asked as (
    select
        e.id, e.status, r.jobs as room_jobs, r.size_bytes as room_bytes,
        pg_column_size(p.payload) as own_bytes,
        count(*) filter (where pg_column_size(p.payload) <= r.size_bytes) over through as jobs,
        sum(pg_column_size(p.payload)) filter (where pg_column_size(p.payload) <= r.size_bytes)
            over through as size_bytes
    from ended e
    left join haulage.job_payloads p on p.job_id = e.id
    left join room r using (submitted_by)
    window through as (partition by e.submitted_by order by e.id)
),
judged as (
    select
        id, status,
        case
            when jobs > room_jobs or room_jobs < 1 then 'pending-jobs'
            when size_bytes > room_bytes or own_bytes > room_bytes then 'pending-bytes'
        end as violated
    from asked
),
-- claim_no goes on growing: a late writer of an earlier life stays a stranger.
revived as (
    update haulage.jobs j
    set status = 'pending',
        attempt = 0,
        node_losses = 0,
        run_at = now(),
        started_at = null,
        finished_at = null,
        cancel_requested_at = null
    from judged
    where j.id = judged.id and judged.violated is null
    returning j.id, j.claim_no
),
-- Who completed would only find everything done already.
forgotten as (
    delete from haulage.job_checkpoints c
    using judged
    where c.job_id = judged.id and judged.status = 'completed' and judged.violated is null
),
event as (
    insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
    select id, claim_no, 0, 'status', 'pending' from revived
)
select id::text as id, violated from judged;

-- name: revoke_key
-- Ends a key; what it submitted stays.
update haulage.api_keys set revoked_at = now() where id = $1 and revoked_at is null
returning 1 as revoked;

-- name: rotate_secret
-- Endpoint $1 signs with $2 from now on, and for $3 seconds with what it had before, too; nothing is
-- changed where it has $4 old secrets that are good, unless those are to end now. Whoever waited for
-- another rotation sees its secrets only with a snapshot of its own: hold_webhook waits.
with
known as (
    select id, secret from haulage.webhooks where id = $1
),
asked as (
    select
        known.id, known.secret, now() + make_interval(secs => $3::float8) as valid_until,
        $3 = 0 or $4 > (
            select count(*)
            from haulage.webhook_secrets s
            where s.webhook_id = known.id and s.valid_until > now()
        ) as is_done
    from known
),
rotated as (
    update haulage.webhooks w set secret = $2 from asked where w.id = asked.id and asked.is_done
),
-- Who shortens the time means all of them: the reason may be that they leaked.
shortened as (
    update haulage.webhook_secrets s
    set valid_until = asked.valid_until
    from asked
    where s.webhook_id = asked.id and asked.is_done and s.valid_until > asked.valid_until
),
forgotten as (
    delete from haulage.webhook_secrets s
    using asked
    where s.webhook_id = asked.id and s.valid_until <= now()
),
kept as (
    insert into haulage.webhook_secrets (webhook_id, secret, valid_until)
    select id, secret, valid_until from asked where is_done and $3 > 0
)
select is_done, valid_until from asked;

-- name: save_call
-- Keeps answer $4 under key $3; counts the call for stage $5 and model $6 where the claim is held.
with
held as (
    select id, claim_no
    from haulage.jobs
    where id = $1 and claim_no = $2 and status = 'running'
    for no key update
),
-- Of two jobs that asked the same at once the second waits here for the first one's commit; then
-- the first answer stays, since others may have built on it already.
--
-- Whoever holds the job now: the answer is paid for, and the next attempt asks the same. Counting
-- the held jobs, none or one, brings their lock before that of the key in every session.
kept as (
    insert into haulage.call_cache (key, answer, model)
    select $3, $4::jsonb, $6 from (select count(*) from held) as locked
    on conflict (key) do nothing
),
-- By claim and key, not by what became of the answer: who came second paid too, and a call whose
-- answer got lost is repeated without having been paid twice.
paid as (
    insert into haulage.usage
        (job_id, claim_no, key, stage, model, calls, prompt_tokens, completion_tokens, cost)
    select id, claim_no, $3, $5, $6, 1, $7, $8, $9::float8 from held
    on conflict (job_id, claim_no, key) where key is not null do nothing
)
select 1 as held from held;

-- name: save_checkpoint
-- The intermediate result $4 of stage $3 replaces an earlier one.
with
held as (
    select id, claim_no
    from haulage.jobs
    where id = $1 and claim_no = $2 and status = 'running'
    for no key update
),
saved as (
    insert into haulage.job_checkpoints (job_id, stage, claim_no, data)
    select id, $3, claim_no, $4::jsonb from held
    on conflict (job_id, stage) do update
    set claim_no = excluded.claim_no, data = excluded.data, saved_at = now()
)
select 1 as held from held;

-- name: schema_revision
-- Which revision of the schema this database has.
select version_num from haulage.alembic_version;

-- name: set_node_state
-- Node $1 becomes 'draining' or 'active' ($2); nothing where it has stopped or is lost.
update haulage.nodes
set state = $2
where id = $1
  and state <> 'stopped'
  and heartbeat_at + make_interval(secs => lease_seconds) > now()
returning 1 as held;
