create view reporting.job_tags as
select j.id as job_id, tag.name as tag, j.pipeline, j.status, j.created_at, j.finished_at
from haulage.jobs j
cross join lateral unnest(j.tags) as tag (name);

comment on view reporting.job_tags is 'One row for each tag of a job.';
comment on column reporting.job_tags.job_id is 'Job that has the tag.';
comment on column reporting.job_tags.tag is 'The tag.';
comment on column reporting.job_tags.pipeline is 'Pipeline of the job.';
comment on column reporting.job_tags.status is 'Status of the job.';
comment on column reporting.job_tags.created_at is 'When the job was submitted.';
comment on column reporting.job_tags.finished_at is 'When the job ended.';
