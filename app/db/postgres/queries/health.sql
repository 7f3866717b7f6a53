-- What health checks ask.

-- name: schema_revision
-- Which revision of the schema this database has.
select version_num from haulage.alembic_version;
