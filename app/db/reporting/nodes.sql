create view reporting.nodes as
select
    node.id as node_id,
    node.name,
    node.pid,
    node.version,
    case
        when node.state = 'stopped' or node.lease_ends_at > now() then node.state
        else 'lost'
    end as state,
    node.capacity,
    (
        select count(*) from haulage.jobs j where j.status = 'running' and j.node_id = node.id
    ) as running,
    node.lease_seconds::numeric as lease_seconds,
    node.heartbeat_at,
    round(extract(epoch from now() - node.heartbeat_at), 3) as heartbeat_seconds,
    node.started_at,
    node.stopped_at
from (
    select
        id, name, pid, version, state, capacity, lease_seconds, heartbeat_at, started_at,
        stopped_at,
        heartbeat_at + make_interval(secs => lease_seconds) as lease_ends_at
    from haulage.nodes
) node;

comment on view reporting.nodes is
    'One row for each boot of a scheduler that is kept: a restarted one is a new node.';
comment on column reporting.nodes.node_id is 'Id of the node.';
comment on column reporting.nodes.name is 'Its name: usually that of its machine.';
comment on column reporting.nodes.pid is 'Process id of the scheduler on its machine.';
comment on column reporting.nodes.version is 'Version of Haulage that it runs.';
comment on column reporting.nodes.state is
    'active, draining (claims nothing any more), stopped, or lost (its lease ended).';
comment on column reporting.nodes.capacity is 'Jobs that it runs at a time.';
comment on column reporting.nodes.running is 'Jobs that it runs now.';
comment on column reporting.nodes.lease_seconds is
    'Seconds without a heartbeat after which others take over its jobs.';
comment on column reporting.nodes.heartbeat_at is 'When it last renewed its lease.';
comment on column reporting.nodes.heartbeat_seconds is 'Seconds since then.';
comment on column reporting.nodes.started_at is 'When it started.';
comment on column reporting.nodes.stopped_at is 'When it stopped in an orderly way.';
