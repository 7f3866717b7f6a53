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
