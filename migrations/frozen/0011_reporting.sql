create view reporting.jobs as
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
    -- From when it could have run at all until it did, or until now.
    case
        when started_at is not null or status = 'pending' then
            round(extract(epoch from greatest(
                coalesce(started_at, now()) - greatest(created_at, run_at), interval '0'
            )), 3)
    end as wait_seconds,
    round(extract(epoch from coalesce(finished_at, now()) - started_at), 3) as run_seconds
from haulage.jobs;

comment on view reporting.jobs is 'One row for each job that is kept.';

create or replace function haulage.is_analysis(result jsonb) returns boolean
language plpgsql
immutable strict parallel safe
-- What it costs to unpack a result of megabytes, which the server does not count. Together with a
-- language that is not inlined it keeps plans to the index whose rows were asked already; a change
-- of the answer needs that index built anew.
cost 10000
as $$
begin
    return jsonb_path_exists(result, 'strict $ ? (
        @.schema == "themes/1"
        && @.input.type() == "object"
        && @.themes.type() == "array"
        && @.insights.type() == "array"
        && @.assignments.type() == "array"
    )');
end
$$;

comment on function haulage.is_analysis(jsonb) is
    'Whether a result of a job is a thematic analysis in the format themes/1.';

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
where j.status = 'completed' and haulage.is_analysis(r.result);

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
    cross join lateral jsonb_to_recordset(analysis.themes) as theme (
        id text, parent text, name text, responses bigint, share numeric
    )
    where j.status = 'completed' and haulage.is_analysis(r.result) and theme.parent is null
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
from followed;

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
