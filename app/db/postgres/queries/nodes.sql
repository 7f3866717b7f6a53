-- Nodes: one row per boot of a scheduler. The heartbeat column is in no index (heap-only updates).

-- name: register_node
-- A new node $1; its lease runs from now.
insert into haulage.nodes (id, name, pid, version, capacity, lease_seconds)
values ($1, $2, $3, $4, $5, $6);

-- name: renew_node
-- Extends the lease, but never one that has ended: other nodes may already rescue its jobs.
update haulage.nodes
set heartbeat_at = now()
where id = $1
  and state <> 'stopped'
  and heartbeat_at + make_interval(secs => lease_seconds) > now()
returning 1 as held;

-- name: drain_node
-- The node claims nothing any more.
update haulage.nodes set state = 'draining' where id = $1 and state = 'active';

-- name: deregister_node
-- The node is gone for good; what it still runs is lost.
update haulage.nodes set state = 'stopped', stopped_at = now() where id = $1;
