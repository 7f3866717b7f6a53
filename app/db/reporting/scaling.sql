create view reporting.scaling as
select
    waiting.due,
    waiting.scheduled,
    busy.running,
    waiting.due + busy.running as wanted_slots,
    alive.nodes,
    alive.capacity,
    waiting.oldest_wait_seconds
from (
    select
        count(*) filter (where run_at <= now()) as due,
        count(*) filter (where run_at > now()) as scheduled,
        round(extract(epoch from now() - min(run_at) filter (where run_at <= now())), 3)
            as oldest_wait_seconds
    from haulage.jobs
    where status = 'pending'
      and queue not in (select name from haulage.queues where is_paused)
) waiting
cross join (select count(*) as running from haulage.jobs where status = 'running') busy
cross join (
    -- Those that claim: neither draining nor past their lease.
    select count(*) as nodes, coalesce(sum(capacity), 0) as capacity
    from haulage.nodes
    where state = 'active' and heartbeat_at + make_interval(secs => lease_seconds) > now()
) alive;

comment on view reporting.scaling is
    'Always one row: what a scaler (such as KEDA) needs to choose the number of nodes.';
comment on column reporting.scaling.due is
    'Pending jobs that could run now; those of paused queues are left out.';
comment on column reporting.scaling.scheduled is
    'Pending jobs with an earliest start to come; those of paused queues are left out.';
comment on column reporting.scaling.running is 'Jobs that run.';
comment on column reporting.scaling.wanted_slots is
    'due and running together: divided by the capacity of a node, the nodes that are wanted.';
comment on column reporting.scaling.nodes is
    'Nodes that claim jobs: alive and not draining.';
comment on column reporting.scaling.capacity is 'Jobs that these run at a time, together.';
comment on column reporting.scaling.oldest_wait_seconds is
    'Seconds that the longest due job has been due; empty where none is.';
