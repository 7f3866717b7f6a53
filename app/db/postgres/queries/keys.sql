-- API keys, by their SHA-256 alone, and what their holders have waiting.

-- name: insert_key
-- A new key $1 named $2, shown as $3, with SHA-256 $4, scopes $5 and caps $6, $7.
insert into haulage.api_keys
    (id, name, prefix, sha256, scopes, max_pending_jobs, max_pending_bytes)
values ($1, $2, $3, $4, $5, $6, $7)
returning
    id::text as id, name, prefix, scopes, max_pending_jobs, max_pending_bytes,
    created_at, last_used_at, revoked_at;

-- name: find_key
-- The active key with SHA-256 $1.
select
    id::text as id, name, prefix, scopes, max_pending_jobs, max_pending_bytes,
    created_at, last_used_at, revoked_at
from haulage.api_keys
where sha256 = $1 and revoked_at is null;

-- name: has_keys
-- Whether there is any key, also a revoked one.
select exists (select from haulage.api_keys) as found;

-- name: list_keys
-- All keys in the order of their making.
select
    id::text as id, name, prefix, scopes, max_pending_jobs, max_pending_bytes,
    created_at, last_used_at, revoked_at
from haulage.api_keys
order by id;

-- name: revoke_key
-- Ends a key; what it submitted stays.
update haulage.api_keys set revoked_at = now() where id = $1 and revoked_at is null
returning 1 as revoked;

-- name: note_key_use
-- The key was used; written once a minute at most, however many processes serve it.
update haulage.api_keys
set last_used_at = now()
where id = $1 and (last_used_at is null or last_used_at < now() - interval '1 minute');

-- name: count_pending
-- What submitter $1 has waiting. The size is that of the stored values: told by their heads, so
-- that no payload is read.
select
    count(*) as jobs, coalesce(sum(pg_column_size(p.payload)), 0)::int8 as size_bytes
from haulage.jobs j
join haulage.job_payloads p on p.job_id = j.id
where j.submitted_by = $1 and j.submitted_by <> '' and j.status = 'pending';

-- name: count_datasets
-- How many datasets submitter $1 has stored.
select count(*) as datasets
from haulage.datasets
where submitted_by = $1 and submitted_by <> '';

-- name: get_dataset_submitter
-- Who stored dataset $1.
select submitted_by from haulage.datasets where id = $1;

-- name: get_submitter
-- Who submitted job $1.
select submitted_by from haulage.jobs where id = $1;
