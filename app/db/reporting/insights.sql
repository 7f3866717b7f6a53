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
