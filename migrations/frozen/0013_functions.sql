-- Submits a job inside the caller's own transaction, as POST /jobs would: same bounds, same
-- defaults, same rows. It acts with its owner's rights, so that a role needs nothing but EXECUTE;
-- hence the fixed search path, and no text of the caller's becomes part of a statement.
create function haulage.enqueue(
    payload jsonb,
    pipeline text default null,
    queue text default 'default',
    priority integer default 0,
    run_at timestamptz default null,
    delay_seconds double precision default 0,
    max_attempts integer default null,
    timeout_seconds double precision default null,
    start_timeout_seconds double precision default null,
    stall_seconds double precision default null,
    memory_limit_bytes bigint default null,
    tags text[] default '{}',
    metadata jsonb default '{}',
    idempotency_key text default null,
    submitted_by text default ''
) returns uuid
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $enqueue$
-- Arguments are called as columns are; where a statement could mean both it means the column.
#variable_conflict use_column
declare
    bad record;
    registered haulage.pipelines;
    known record;
    job_id uuid;
    named text;
    dataset_id uuid;
    starts_at timestamptz;
    fingerprint bytea;
    microseconds bigint;
begin
    -- Null says nothing, as an argument that is left out.
    queue := coalesce(queue, 'default');
    priority := coalesce(priority, 0);
    delay_seconds := coalesce(delay_seconds, 0);
    tags := coalesce(tags, '{}');
    metadata := coalesce(metadata, '{}');
    submitted_by := coalesce(submitted_by, '');

    -- A rule that comes out as null is about an argument that says nothing: it holds.
    select rule.argument, rule.expected into bad
    from (
        values
            (1, 'payload', coalesce(jsonb_typeof(payload), '') = 'object', 'a JSON object'),
            (2, 'payload', octet_length(payload::text) <= 10 * 1024 * 1024,
                'at most 10485760 bytes'),
            (3, 'payload', not jsonb_path_exists(payload,
                'strict $.**{100} ? (@.type() == "object" || @.type() == "array")'),
                'at most 100 levels'),
            (4, 'payload', not jsonb_path_exists(payload,
                'strict $.** ? (@.type() == "number" && (@ >= 1e1000 || @ <= -1e1000))'),
                'numbers of at most 1,000 digits'),
            (5, 'pipeline', char_length(pipeline) between 1 and 255, '1 to 255 characters'),
            (6, 'queue', char_length(queue) between 1 and 255, '1 to 255 characters'),
            (7, 'priority', priority between -32768 and 32767, '-32768 to 32767'),
            (8, 'run_at', run_at >= '0001-01-01 00:00:00+00' and run_at < '10000-01-01 00:00:00+00',
                'an instant in the years 1 to 9999'),
            (9, 'delay_seconds', delay_seconds between 0 and 31536000, '0 to 31536000'),
            (10, 'delay_seconds', run_at is null or delay_seconds = 0, '0 beside run_at'),
            (11, 'max_attempts', max_attempts between 1 and 100, '1 to 100'),
            (12, 'timeout_seconds', timeout_seconds > 0 and timeout_seconds <= 31536000,
                'more than 0, at most 31536000'),
            (13, 'start_timeout_seconds',
                start_timeout_seconds > 0 and start_timeout_seconds <= 86400,
                'more than 0, at most 86400'),
            (14, 'stall_seconds', stall_seconds between 1 and 31536000, '1 to 31536000'),
            (15, 'memory_limit_bytes',
                memory_limit_bytes between 64 * 1024 * 1024 and 1152921504606846976,
                '67108864 to 1152921504606846976'),
            (16, 'tags', cardinality(tags) <= 50 and coalesce(array_ndims(tags), 1) = 1,
                'a list of at most 50'),
            (17, 'tags', (
                select bool_and(coalesce(char_length(tag) between 1 and 100, false))
                from unnest(tags) as tag
            ), '1 to 100 characters each'),
            (18, 'metadata', jsonb_typeof(metadata) = 'object', 'a JSON object'),
            (19, 'metadata', octet_length(metadata::text) <= 64 * 1024, 'at most 65536 bytes'),
            (20, 'metadata', not jsonb_path_exists(metadata,
                'strict $.**{100} ? (@.type() == "object" || @.type() == "array")'),
                'at most 100 levels'),
            (21, 'metadata', not jsonb_path_exists(metadata,
                'strict $.** ? (@.type() == "number" && (@ >= 1e1000 || @ <= -1e1000))'),
                'numbers of at most 1,000 digits'),
            (22, 'idempotency_key', idempotency_key ~ '^[!-~]{1,255}$',
                '1 to 255 visible ASCII characters'),
            (23, 'submitted_by', char_length(submitted_by) <= 255, 'at most 255 characters')
    ) as rule (place, argument, holds, expected)
    where rule.holds is false
    order by rule.place
    limit 1;
    if found then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = 'bad ' || bad.argument || ': ' || bad.expected || ' expected',
            column = bad.argument,
            hint = 'Nothing was enqueued. The bounds are those of POST /jobs.';
    end if;

    -- Services tell the database at their start what they can run, and what of it is the default.
    select * into registered
    from haulage.pipelines as registration
    where case
        when enqueue.pipeline is not null then registration.name = enqueue.pipeline
        else registration.defaulted_at is not null
    end
    order by registration.defaulted_at desc nulls last
    limit 1;
    if not found then
        raise exception using
            errcode = 'JQ002',
            message = coalesce('no pipeline ' || quote_literal(pipeline), 'no default pipeline'),
            column = 'pipeline',
            hint = 'Registered by the services that were started on this database: ' || coalesce(
                (select string_agg(name, ', ' order by name) from haulage.pipelines), 'none'
            ) || '.';
    end if;

    if registered.takes_dataset and jsonb_typeof(payload #> '{dataset,id}') = 'string' then
        -- Every spelling of a UUID; other texts mean something else to their pipeline.
        named := replace(btrim(replace(replace(
            payload #>> '{dataset,id}', 'urn:', ''), 'uuid:', ''), '{}'), '-', '');
        if named ~ '^[0-9a-fA-F]{32}$' then
            dataset_id := named;
        end if;
        if dataset_id is not null
            and not exists (select from haulage.datasets as stored where stored.id = dataset_id)
        then
            raise exception using
                errcode = 'foreign_key_violation',
                message = 'no dataset ' || dataset_id,
                column = 'payload',
                hint = 'POST /datasets stores one and answers its id.';
        end if;
    end if;

    -- What was asked for, defaults left out: they may change between two calls that are equal.
    -- Numbers as numeric, whose text no setting of the session changes.
    if idempotency_key is not null then
        fingerprint := sha256(convert_to(jsonb_strip_nulls(jsonb_build_object(
            'pipeline', registered.name,
            'queue', nullif(queue, 'default'),
            'priority', nullif(priority, 0),
            'run_at', extract(epoch from run_at),
            'delay_seconds', nullif(delay_seconds, 0)::numeric,
            'max_attempts', max_attempts,
            'timeout_seconds', timeout_seconds::numeric,
            'start_timeout_seconds', start_timeout_seconds::numeric,
            'stall_seconds', stall_seconds::numeric,
            'memory_limit_bytes', memory_limit_bytes,
            'tags', nullif(tags, '{}')
        ))::text, 'UTF8'));
    end if;

    starts_at := coalesce(run_at, now()) + make_interval(secs => delay_seconds);
    -- The job of a key may be deleted between the insert that met it and the look at it.
    for try in 1..3 loop
        -- UUIDv7 (RFC 9562, method 3: the bits after the version count 1/4096 of a millisecond), so
        -- that the jobs of one transaction, due at one instant, are claimed in their order.
        microseconds := floor(extract(epoch from clock_timestamp()) * 1000000);
        job_id := encode(overlay(
            uuid_send(gen_random_uuid())
            placing substring(int8send(microseconds / 1000) from 3)
                || int2send((28672 + microseconds % 1000 * 4096 / 1000)::int2)
            from 1
        ), 'hex');

        insert into haulage.jobs (
            id, pipeline, queue, priority, run_at, max_attempts,
            timeout_seconds, start_timeout_seconds, stall_seconds, memory_limit_bytes,
            tags, metadata, submitted_by, idempotency_key, payload_hash, dataset_id
        )
        values (
            job_id, registered.name, queue, priority, starts_at,
            coalesce(max_attempts, registered.max_attempts, 1),
            coalesce(timeout_seconds, registered.timeout_seconds),
            coalesce(start_timeout_seconds, registered.start_timeout_seconds),
            coalesce(stall_seconds, registered.stall_seconds),
            coalesce(memory_limit_bytes, registered.memory_limit_bytes),
            tags, metadata, submitted_by, idempotency_key, fingerprint, dataset_id
        )
        -- Whoever holds the key in an open transaction is waited for: its end decides.
        on conflict (submitted_by, idempotency_key) where idempotency_key is not null do nothing;
        if found then
            insert into haulage.job_payloads (job_id, payload) values (job_id, payload);
            -- The submission is the first line of a job's story.
            insert into haulage.job_events (job_id, claim_no, attempt, kind, stage)
            values (job_id, 0, 0, 'status', 'pending');
            -- Sent at the commit, once however many jobs there are. The lock that this takes then is
            -- why it can be switched off, and so is PREPARE TRANSACTION, which refuses it.
            if starts_at <= now()
                and coalesce(lower(current_setting('haulage.notify', true)), 'on')
                    not in ('off', 'false', 'no', '0')
            then
                perform pg_notify('haulage_wake', '');
            end if;
            return job_id;
        end if;

        -- A statement of its own sees what the insert has waited for.
        select job.id,
            job.payload_hash is not distinct from fingerprint
                and job.metadata = enqueue.metadata
                and stored.payload = enqueue.payload as is_same
        into known
        from haulage.jobs as job
        left join haulage.job_payloads as stored on stored.job_id = job.id
        where job.submitted_by = enqueue.submitted_by
            and job.idempotency_key = enqueue.idempotency_key;
        if known.is_same then
            return known.id;
        elsif known.id is not null then
            raise exception using
                errcode = 'JQ001',
                message = 'idempotency key ' || quote_literal(idempotency_key)
                    || ' was used for job ' || known.id || ' with other content',
                detail = known.id,
                column = 'idempotency_key',
                hint = 'Use a new key for another job. A key that a request over HTTP has used '
                    'counts as used with other content.';
        end if;
    end loop;
    raise exception using
        errcode = 'serialization_failure',
        message = 'the job of this idempotency key comes and goes too quickly',
        hint = 'Repeat the transaction.';
end
$enqueue$;

comment on function haulage.enqueue is
    'Submits a job in the caller''s transaction and returns its id; bounds and defaults are those of POST /jobs. Errors: 22023 bad argument (column says which), 23503 unknown dataset, JQ001 idempotency key used with other content (detail has the job), JQ002 unknown pipeline, 40001 repeat the transaction.';

revoke all on function haulage.enqueue from public;
