-- Webhook endpoints and their deliveries, which `finish_job` and `cancel_job` insert.

-- name: insert_webhook
-- A new endpoint.
insert into haulage.webhooks (id, url, events, secret)
values ($1, $2, $3, $4)
returning id::text as id, url, events, is_active, disabled_reason, created_at;

-- name: list_webhooks
-- All endpoints, or endpoint $1 where that is not null.
select id::text as id, url, events, is_active, disabled_reason, created_at
from haulage.webhooks
where $1::uuid is null or id = $1
order by id;

-- name: enable_webhook
-- The endpoint is told again.
update haulage.webhooks set is_active = true, disabled_reason = null where id = $1
returning 1 as found;

-- name: disable_webhook
-- The endpoint is told no more because of $2. What is pending is given up: whoever enables it
-- replays what is still of interest, instead of being flooded with what has grown old.
with
disabled as (
    update haulage.webhooks set is_active = false, disabled_reason = $2 where id = $1
    returning id
),
given_up as (
    update haulage.webhook_deliveries d
    set status = 'failed', last_error = $2
    from disabled
    where d.webhook_id = disabled.id and d.status = 'pending'
)
select 1 as found from disabled;

-- name: hold_webhook
-- Before rotate_secret, in its transaction: of two rotations of endpoint $1 the second one waits here.
select 1 as found from haulage.webhooks where id = $1 for no key update;

-- name: rotate_secret
-- Endpoint $1 signs with $2 from now on, and for $3 seconds with what it had before, too; nothing is
-- changed where it has $4 old secrets that are good, unless those are to end now. Whoever waited for
-- another rotation sees its secrets only with a snapshot of its own: hold_webhook waits.
with
known as (
    select id, secret from haulage.webhooks where id = $1
),
asked as (
    select
        known.id, known.secret, now() + make_interval(secs => $3::float8) as valid_until,
        $3 = 0 or $4 > (
            select count(*)
            from haulage.webhook_secrets s
            where s.webhook_id = known.id and s.valid_until > now()
        ) as is_done
    from known
),
rotated as (
    update haulage.webhooks w set secret = $2 from asked where w.id = asked.id and asked.is_done
),
-- Who shortens the time means all of them: the reason may be that they leaked.
shortened as (
    update haulage.webhook_secrets s
    set valid_until = asked.valid_until
    from asked
    where s.webhook_id = asked.id and asked.is_done and s.valid_until > asked.valid_until
),
forgotten as (
    delete from haulage.webhook_secrets s
    using asked
    where s.webhook_id = asked.id and s.valid_until <= now()
),
kept as (
    insert into haulage.webhook_secrets (webhook_id, secret, valid_until)
    select id, secret, valid_until from asked where is_done and $3 > 0
)
select is_done, valid_until from asked;

-- name: delete_webhook
-- The endpoint and its deliveries are forgotten.
delete from haulage.webhooks where id = $1 returning 1 as found;

-- name: list_deliveries
-- At most $2 deliveries to endpoint $1, only those older than instant $3 and id $4 where not null.
select
    id::text as id, webhook_id::text as webhook_id, job_id::text as job_id, event, status,
    attempt, next_at, delivered_at, last_status_code, last_error, created_at
from haulage.webhook_deliveries
where webhook_id = $1
  and ($3::timestamptz is null or (created_at, id) < ($3, $4::uuid))
order by created_at desc, id desc
limit $2;

-- name: replay_delivery
-- An ended delivery to an active endpoint is due again; says what it was, nothing where there is
-- none.
with
replayed as (
    update haulage.webhook_deliveries d
    set status = 'pending', attempt = 0, next_at = now(), delivered_at = null
    from haulage.webhooks w
    where d.id = $1 and d.status <> 'pending' and w.id = d.webhook_id and w.is_active
    returning d.id
)
select
    case
        when exists (select from replayed) then 'replayed'
        when not w.is_active then 'switched-off'
        else 'pending'
    end as outcome
from haulage.webhook_deliveries d
join haulage.webhooks w on w.id = d.webhook_id
where d.id = $1;

-- name: claim_deliveries
-- At most $1 due deliveries for one try, at most $2 of one endpoint, $4 of which are taken for each
-- of endpoints $3. For $5 seconds they are nobody else's: whoever dies in the middle of a try leaves
-- them due again.
with
-- Of each endpoint what there is a place for.
found as materialized (
    select w.id as webhook_id, d.id, d.next_at, coalesce(t.places, 0) as taken
    from haulage.webhooks w
    left join unnest($3::uuid[], $4::integer[]) as t (webhook_id, places) on t.webhook_id = w.id
    cross join lateral (
        select c.id, c.next_at
        from haulage.webhook_deliveries c
        where c.webhook_id = w.id and c.status = 'pending' and c.next_at <= now()
        order by c.next_at
        limit greatest(0, $2 - coalesce(t.places, 0))
        for update skip locked
    ) d
    where w.is_active
),
-- Fair: the first of each endpoint, then the second of each. By age alone the backlogs of endpoints
-- that hang would go before everything of those that answer.
due as materialized (
    select id
    from found
    order by taken + row_number() over (partition by webhook_id order by next_at), next_at
    limit $1
),
claimed as (
    update haulage.webhook_deliveries d
    set attempt = d.attempt + 1, next_at = now() + make_interval(secs => $5)
    from due
    where d.id = due.id
    returning d.id, d.webhook_id, d.job_id, d.event, d.attempt, d.created_at
)
select
    c.id::text as id, c.webhook_id::text as webhook_id, w.url,
    w.secret || array(
        select s.secret
        from haulage.webhook_secrets s
        where s.webhook_id = w.id and s.valid_until > now()
        order by s.valid_until desc, s.secret
    ) as secrets,
    c.job_id::text as job_id, j.pipeline, c.event, c.attempt, c.created_at
from claimed c
join haulage.webhooks w on w.id = c.webhook_id
join haulage.jobs j on j.id = c.job_id
order by c.created_at, c.id;

-- name: give_back_try
-- Try $2 of delivery $1 was broken off by its own process: it does not count, and is due at once.
update haulage.webhook_deliveries
set attempt = attempt - 1, next_at = now()
where id = $1 and attempt = $2 and status = 'pending';

-- name: end_try
-- What became of try $2 of delivery $1; nothing where a later one has begun.
update haulage.webhook_deliveries
set status = $3,
    next_at = now() + make_interval(secs => $4),
    delivered_at = case when $3 = 'delivered' then now() end,
    last_status_code = $5,
    last_error = $6
where id = $1 and attempt = $2 and status = 'pending'
returning 1 as held;
