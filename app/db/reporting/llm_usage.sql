create view reporting.llm_usage as
select
    used.job_id,
    j.pipeline,
    used.stage,
    used.model,
    used.calls,
    used.cached_calls,
    used.prompt_tokens,
    used.completion_tokens,
    used.cost,
    used.first_at,
    used.last_at
from (
    select
        job_id,
        stage,
        model,
        sum(calls)::bigint as calls,
        sum(cached_calls)::bigint as cached_calls,
        sum(prompt_tokens)::bigint as prompt_tokens,
        sum(completion_tokens)::bigint as completion_tokens,
        sum(cost) as cost,
        min(created_at) as first_at,
        max(created_at) as last_at
    from haulage.usage
    group by job_id, stage, model
) used
left join haulage.jobs j on j.id = used.job_id;

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
