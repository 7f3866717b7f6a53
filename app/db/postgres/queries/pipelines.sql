-- What services can run, told to the database for haulage.enqueue.

-- name: announce_pipelines
-- Stores what can run since $10 s: $8 if a job names none; of those in $9 names are known alone.
insert into haulage.pipelines as known (
    name, max_attempts, timeout_seconds, start_timeout_seconds, stall_seconds,
    memory_limit_bytes, takes_dataset, defaulted_at, announced_at
)
select
    given.name, given.max_attempts, given.timeout_seconds, given.start_timeout_seconds,
    given.stall_seconds, given.memory_limit_bytes, given.takes_dataset,
    case when given.name = $8::text then since.at end,
    since.at
-- Whoever is heard late tells of its start, not of now. A start to come is none.
from (select clock_timestamp() - make_interval(secs => greatest($10::float8, 0))) as since (at)
cross join unnest(
    $1::text[], $2::int4[], $3::float8[], $4::float8[], $5::float8[], $6::int8[], $7::bool[]
) as given (
    name, max_attempts, timeout_seconds, start_timeout_seconds, stall_seconds,
    memory_limit_bytes, takes_dataset
)
-- One order for everybody, so that services that start together do not deadlock.
order by given.name collate "C"
on conflict (name) do update
set (
        max_attempts, timeout_seconds, start_timeout_seconds, stall_seconds,
        memory_limit_bytes, takes_dataset
    ) = (
        -- What others have told of a class stays where it could not be asked here.
        select
            told.max_attempts, told.timeout_seconds, told.start_timeout_seconds,
            told.stall_seconds, told.memory_limit_bytes, told.takes_dataset
        from (
            select known.* where excluded.name = any ($9::text[])
            union all
            select excluded.* where excluded.name <> all ($9::text[])
        ) as told
    ),
    -- The default of others stays until somebody calls another one so.
    defaulted_at = coalesce(excluded.defaulted_at, known.defaulted_at),
    announced_at = excluded.announced_at
-- Of services that can run the same the one that started last is right.
where known.announced_at <= excluded.announced_at;
