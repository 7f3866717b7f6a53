create view reporting.queue_now as
with
-- Both read a partial index that is as small as what it counts.
waiting as (
    select
        queue,
        count(*) filter (where run_at <= now()) as due,
        count(*) filter (where run_at > now()) as scheduled,
        min(run_at) filter (where run_at <= now()) as oldest_run_at
    from haulage.jobs
    where status = 'pending'
    group by queue
),
busy as (
    select queue, count(*) as running from haulage.jobs where status = 'running' group by queue
)
select
    named.queue,
    coalesce(q.is_paused, false) as is_paused,
    coalesce(w.due, 0) as due,
    coalesce(w.scheduled, 0) as scheduled,
    coalesce(b.running, 0) as running,
    round(extract(epoch from now() - w.oldest_run_at), 3) as oldest_wait_seconds
from (
    select name from haulage.queues union select queue from waiting union select queue from busy
) as named (queue)
left join haulage.queues q on q.name = named.queue
left join waiting w on w.queue = named.queue
left join busy b on b.queue = named.queue;

comment on view reporting.queue_now is
    'One row for each queue that has jobs to do or was paused once, as it is now.';
comment on column reporting.queue_now.queue is 'Name of the queue.';
comment on column reporting.queue_now.is_paused is 'Whether nothing of it is claimed at present.';
comment on column reporting.queue_now.due is 'Pending jobs that could run now.';
comment on column reporting.queue_now.scheduled is 'Pending jobs with an earliest start to come.';
comment on column reporting.queue_now.running is 'Jobs that run.';
comment on column reporting.queue_now.oldest_wait_seconds is
    'Seconds that the longest due job has been due; empty where none is.';
