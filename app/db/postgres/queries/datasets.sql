-- Datasets: tables of texts that jobs read. A row's cells stand in the order of the columns.

-- name: insert_dataset
-- What is known of a dataset; its rows follow in the same transaction.
insert into haulage.datasets (id, name, sha256, detected, columns, row_count, submitted_by)
values ($1, $2, $3, $4::jsonb, $5, 0, $6)
returning created_at;

-- name: close_dataset
-- The last statement of that transaction, when the rows have been counted.
update haulage.datasets set row_count = $2 where id = $1;

-- name: get_dataset
-- What is known of a dataset.
select
    id::text as id, name, columns, row_count, detected::text as detected,
    encode(sha256, 'hex') as sha256, created_at
from haulage.datasets
where id = $1;

-- name: list_datasets_of_file
-- At most $2 datasets that came from the file with sha256 $1, the newest first.
select
    d.id::text as id, d.name, d.columns, d.row_count, d.detected::text as detected,
    encode(d.sha256, 'hex') as sha256, d.created_at
from haulage.datasets d
where d.sha256 = $1
order by d.id desc -- of the table: the index has no texts
limit $2;

-- name: list_dataset_rows
-- At most $4 rows after row $3, and of each the cells at the positions $2, counted from 1.
select
    r.row_no,
    array(
        select r.cells[wanted.position]
        from unnest($2::integer[]) with ordinality as wanted (position, n)
        order by wanted.n
    ) as cells
from haulage.dataset_rows r
where r.dataset_id = $1 and r.row_no > $3
order by r.row_no
limit $4;

-- name: list_datasets
-- At most $1 datasets older than $2 where that is given, the newest first.
select id::text as id, name, row_count, cardinality(columns) as column_count, created_at
from haulage.datasets
where $2::uuid is null or id < $2
order by datasets.id desc
limit $1;

-- name: list_dataset_json
-- At most $3 rows after row $2, each as a JSON list, as far as they fit into $4 bytes; one at least.
select row_no, text
from (
    select
        row_no, cells.text,
        sum(octet_length(cells.text)) over (order by row_no) as bytes,
        row_number() over (order by row_no) as n
    from (
        select r.row_no, to_json(r.cells)::text as text
        from haulage.dataset_rows r
        where r.dataset_id = $1 and r.row_no > $2
        order by r.row_no
        limit $3
    ) cells
) measured
where bytes <= $4 or n = 1
order by row_no;

-- name: delete_dataset
-- Removes a dataset that no job needs any more, and says whether there was one and who needs it.
with
-- Locked before anything is decided: a job that names it either is there already or comes too late.
dataset as (
    select id from haulage.datasets where id = $1 for update
),
-- One that begins to name it, or to run again, meanwhile breaks its foreign key: nothing happens.
needed as (
    select 1 from haulage.jobs where dataset_id = $1 and status in ('pending', 'running') limit 1
),
freed as (
    update haulage.jobs set dataset_id = null
    where dataset_id = $1 and status not in ('pending', 'running') and not exists (table needed)
),
gone as (
    delete from haulage.datasets d using dataset
    where d.id = dataset.id and not exists (table needed)
)
select exists (table needed) as is_needed from dataset;
