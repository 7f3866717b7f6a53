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
    -- One without themes has its place, too.
    left join lateral jsonb_to_recordset(analysis.themes) as theme (
        id text, parent text, name text, responses bigint, share numeric
    ) on theme.parent is null
    where j.status = 'completed' and haulage.is_analysis(r.result)
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
from followed
where theme_id is not null;

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
