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
