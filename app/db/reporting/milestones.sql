create view reporting.milestones as
select
    e.id as event_id,
    e.job_id,
    e.claim_no,
    e.attempt,
    j.pipeline,
    e.stage,
    e.fraction::numeric as fraction,
    e.message,
    e.created_at as reached_at,
    -- Until the claim's next event: a later stage or its end. By index, and only where it is asked
    -- for; a window function would be worked out for every row.
    (
        select round(extract(epoch from later.created_at - e.created_at), 3)
        from haulage.job_events later
        where later.job_id = e.job_id and later.claim_no = e.claim_no and later.id > e.id
        order by later.id
        limit 1
    ) as stage_seconds
from haulage.job_events e
left join haulage.jobs j on j.id = e.job_id
where e.kind = 'milestone';

comment on view reporting.milestones is 'One row for each stage that an attempt entered.';
comment on column reporting.milestones.event_id is 'Grows within a job in the order of the stages.';
comment on column reporting.milestones.job_id is 'Job that got there.';
comment on column reporting.milestones.claim_no is 'Claim under which it did.';
comment on column reporting.milestones.attempt is 'Number of the attempt.';
comment on column reporting.milestones.pipeline is 'Pipeline of the job.';
comment on column reporting.milestones.stage is 'Name of the stage.';
comment on column reporting.milestones.fraction is 'Share of the whole job done by then, 0 to 1.';
comment on column reporting.milestones.message is 'What the pipeline said at that moment.';
comment on column reporting.milestones.reached_at is 'When the stage began.';
comment on column reporting.milestones.stage_seconds is
    'Seconds until the next stage or the end of the attempt; empty for the stage under way.';
