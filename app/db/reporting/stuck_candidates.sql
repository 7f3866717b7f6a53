create view reporting.stuck_candidates as
-- From the job's own row and those of nodes and queues alone. How long a job has been silent is in
-- reporting.running_now.
select
    job.id as job_id,
    job.pipeline,
    job.queue,
    job.status,
    told.reason,
    told.since,
    round(extract(epoch from now() - told.since), 3) as since_seconds,
    job.claim_no,
    job.node_id,
    node.name as node_name
from haulage.jobs job
left join haulage.nodes node on node.id = job.node_id
cross join lateral (
    select
        node.heartbeat_at + make_interval(secs => node.lease_seconds) as ends_at
) lease
cross join lateral (
    -- The time-out counts from the worker's first word, and its processes take a while to end.
    select
        job.started_at + make_interval(secs => job.timeout_seconds) + interval '1 minute' as ends_at
) allowed
-- One reason for each job, the one that explains the others.
cross join lateral (
    select reason, since
    from (
        values
            (1, 'node_unknown', job.started_at, node.id is null),
            (2, 'node_stopped', node.stopped_at, node.state = 'stopped'),
            (3, 'node_lost', lease.ends_at, lease.ends_at <= now()),
            (
                4, 'cancel_unheard', job.cancel_requested_at,
                job.cancel_requested_at < now() - interval '1 minute'
            ),
            (5, 'timeout_passed', allowed.ends_at, allowed.ends_at < now()),
            (6, 'runs_for_a_day', job.started_at, job.started_at < now() - interval '1 day')
    ) as reasons (weight, reason, since, is_so)
    where is_so
    order by weight
    limit 1
) told
where job.status = 'running'
union all
-- The index of waiting jobs has all of it; the status would have to be read from the row.
select
    id,
    pipeline,
    queue,
    'pending',
    'due_for_an_hour',
    run_at,
    round(extract(epoch from now() - run_at), 3),
    claim_no,
    null,
    null
from haulage.jobs
where status = 'pending'
  and run_at < now() - interval '1 hour'
  and queue not in (select name from haulage.queues where is_paused);

comment on view reporting.stuck_candidates is
    'One row for each job that may need somebody to look after it, with the weightiest reason.';
comment on column reporting.stuck_candidates.job_id is 'The job.';
comment on column reporting.stuck_candidates.pipeline is 'Its pipeline.';
comment on column reporting.stuck_candidates.queue is 'Its queue.';
comment on column reporting.stuck_candidates.status is 'pending or running.';
comment on column reporting.stuck_candidates.reason is
    'node_unknown, node_stopped, node_lost (its lease ended), cancel_unheard (for a minute),'
    ' timeout_passed (its own, by a minute), runs_for_a_day; of a pending job: due_for_an_hour, in'
    ' a queue that is not paused.';
comment on column reporting.stuck_candidates.since is 'From when on that has been so.';
comment on column reporting.stuck_candidates.since_seconds is 'Seconds since then.';
comment on column reporting.stuck_candidates.claim_no is 'Number of its latest claim.';
comment on column reporting.stuck_candidates.node_id is 'Node that runs it.';
comment on column reporting.stuck_candidates.node_name is 'Name of that node.';
