-- Results of completed jobs; that of an earlier life does not count. A large result is compressed
-- as a whole, and every operator on it unpacks it anew: no statement has more of them than it needs.

-- name: list_result_pieces
-- A result as it is sent, in order, in pieces of $2 bytes: nobody has to copy it in one go.
select substring(stored.result from piece.n * $2::integer + 1 for $2::integer) as piece
from (
    select convert_to(r.result::text, 'UTF8') as result
    from haulage.jobs j
    join haulage.job_results r on r.job_id = j.id
    where j.id = $1 and j.status = 'completed'
    offset 0 -- keeps it a step of its own: made once, not for each piece
) stored,
lateral generate_series(0, (octet_length(stored.result) - 1) / $2::integer) as piece (n)
order by piece.n;

-- name: get_result_state
-- Where the job is, and which claim left its result.
select j.status, r.claim_no
from haulage.jobs j
left join haulage.job_results r on r.job_id = j.id and j.status = 'completed'
where j.id = $1;

-- name: get_result_themes
-- The themes of an analysis with its counts, without where each row went.
with
-- Materialized, or each use of it would unpack the whole result.
head as materialized (
    select r.result - 'assignments' as head
    from haulage.jobs j
    join haulage.job_results r on r.job_id = j.id
    where j.id = $1 and j.status = 'completed' and jsonb_typeof(r.result) = 'object'
)
select jsonb_build_object(
    'question', head -> 'question',
    'labelling', head -> 'labelling',
    'input', head -> 'input',
    'themes', head -> 'themes',
    'other', (head -> 'other') - 'sample' - 'suggested',
    'failed', head -> 'failed',
    'non_answers', (head -> 'non_answers') - 'texts',
    'insights', head -> 'insights',
    'metrics', head -> 'metrics',
    'warnings', head -> 'warnings'
)::text as themes
from head
where head ->> 'schema' = 'themes/1';

-- name: get_theme_quotes
-- Theme $2 of an analysis without its quotes, and at most $3 of these after the first $4.
with
themes as materialized (
    select jsonb_path_query(
        r.result,
        '$ ? (@.schema == "themes/1").themes[*] ? (@.id == $id)',
        jsonb_build_object('id', $2::text)
    ) as theme
    from haulage.jobs j
    join haulage.job_results r on r.job_id = j.id
    where j.id = $1 and j.status = 'completed'
    limit 1
)
select
    (theme - 'quotes')::text as theme,
    jsonb_path_query_array(
        theme,
        '$.quotes[$first to $last]',
        jsonb_build_object('first', $4::integer, 'last', $4::integer + $3::integer - 1)
    )::text as items,
    least(greatest(jsonb_array_length(theme -> 'quotes') - $4::integer, 0), $3::integer) as count,
    jsonb_array_length(theme -> 'quotes') > $4::integer + $3::integer as has_more
from themes;

-- name: list_assignments
-- At most $2 assignments of an analysis after the first $3, and whether others follow.
with
-- One more than asked for tells whether there are more.
page as materialized (
    select jsonb_path_query_array(
        r.result,
        '$ ? (@.schema == "themes/1").assignments[$first to $last]',
        jsonb_build_object('first', $3::integer, 'last', $3::integer + $2::integer)
    ) as items, r.result ->> 'schema' = 'themes/1' as is_analysis
    from haulage.jobs j
    join haulage.job_results r on r.job_id = j.id
    where j.id = $1 and j.status = 'completed'
)
select
    (items - $2::integer)::text as items,
    least(jsonb_array_length(items), $2::integer) as count,
    jsonb_array_length(items) > $2::integer as has_more
from page
where is_analysis;
