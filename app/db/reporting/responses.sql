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
