-- Datasets: tables of texts that jobs read. A row's cells stand in the order of the columns.

-- name: insert_dataset
-- What is known of a dataset; its rows follow in the same transaction.
insert into haulage.datasets (id, name, sha256, detected, columns, row_count)
values ($1, $2, $3, $4::jsonb, $5, 0);

-- name: insert_dataset_row
-- Row $2 of dataset $1.
insert into haulage.dataset_rows (dataset_id, row_no, cells) values ($1, $2, $3);

-- name: close_dataset
-- The last statement of that transaction, when the rows have been counted.
update haulage.datasets set row_count = $2 where id = $1;

-- name: get_dataset
-- What is known of a dataset.
select
    id::text as id, name, columns, row_count, detected::text as detected,
    encode(sha256, 'hex') as sha256
from haulage.datasets
where id = $1;

-- name: list_datasets_of_file
-- At most $2 datasets that came from the file with sha256 $1, the newest first.
select
    d.id::text as id, d.name, d.columns, d.row_count, d.detected::text as detected,
    encode(d.sha256, 'hex') as sha256
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
