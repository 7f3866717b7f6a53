"""Alembic's environment: one locked connection per run, each revision in its own transaction.

It leaves the application's loggers alone and works under a running event loop too, because the
lock and the loop belong to `app.db.migrate`.
"""

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo
from sqlalchemy import Connection

from app.db.migrate import LOCK_TIMEOUT, run_locked
from app.db.schema import SCHEMA, metadata


def _is_ours(_object: object, name: str | None, kind: str, *_: object) -> bool:
    return not (kind == "table" and name == "alembic_version")


def _note_step(
    ctx: MigrationContext,  # noqa: ARG001  alembic passes all four by name
    step: MigrationInfo,
    heads: object,  # noqa: ARG001
    run_args: object,  # noqa: ARG001
) -> None:
    context.config.attributes.get("applied", []).append(step)


def _migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table_schema=SCHEMA,
        include_schemas=True,
        include_object=_is_ours,
        include_name=lambda name, kind, _parents: kind != "schema" or name == SCHEMA,
        compare_server_default=True,
        on_version_apply=_note_step,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def _write_sql() -> None:
    context.configure(
        dialect_name="postgresql",
        # Else every % of a function's body would come out twice.
        dialect_opts={"paramstyle": "named"},
        target_metadata=metadata,
        version_table_schema=SCHEMA,
        literal_binds=True,
        transaction_per_migration=True,
    )
    output = context.get_context().impl.static_output
    output(f"set lock_timeout = '{LOCK_TIMEOUT}';")
    # The version table lives in the schema, so the schema comes first.
    output(f"create schema if not exists {SCHEMA};")
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    _write_sql()
else:
    run_locked(context.config, _migrate)
