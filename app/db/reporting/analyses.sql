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
