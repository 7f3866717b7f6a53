-- Paid calls: answers that are kept once for every job, and what each job paid, failed requests too.

-- name: load_call
-- The answer that any job has kept under key $1.
select answer::text as answer from haulage.call_cache where key = $1;

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
