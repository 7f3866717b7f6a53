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
