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
