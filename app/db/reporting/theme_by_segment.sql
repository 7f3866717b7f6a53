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
