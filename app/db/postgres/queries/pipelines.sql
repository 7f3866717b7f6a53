-- What services can run, told to the database for haulage.enqueue.

-- name: announce_pipelines
-- Stores pipelines by name with their job defaults; $8, unless null, is the one for jobs that name none.
insert into haulage.pipelines as known (
    name, max_attempts, timeout_seconds, start_timeout_seconds, stall_seconds,
    memory_limit_bytes, takes_dataset, defaulted_at
)
select
    given.name, given.max_attempts, given.timeout_seconds, given.start_timeout_seconds,
    given.stall_seconds, given.memory_limit_bytes, given.takes_dataset,
    case when given.name = $8::text then clock_timestamp() end
from unnest(
    $1::text[], $2::int4[], $3::float8[], $4::float8[], $5::float8[], $6::int8[], $7::bool[]
) as given (
    name, max_attempts, timeout_seconds, start_timeout_seconds, stall_seconds,
    memory_limit_bytes, takes_dataset
)
-- One order for everybody, so that services that start together do not deadlock.
order by given.name collate "C"
on conflict (name) do update
set max_attempts = excluded.max_attempts,
    timeout_seconds = excluded.timeout_seconds,
    start_timeout_seconds = excluded.start_timeout_seconds,
    stall_seconds = excluded.stall_seconds,
    memory_limit_bytes = excluded.memory_limit_bytes,
    takes_dataset = excluded.takes_dataset,
    -- The default of others stays until somebody calls another one so.
    defaulted_at = coalesce(excluded.defaulted_at, known.defaulted_at),
    announced_at = now();
