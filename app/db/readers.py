"""Roles that read reports: what they are granted, and that it is no more than that.

Roles belong to the whole server, and to whoever looks after it: none is made or dropped here.
"""

import asyncio
from importlib.resources import files
from typing import Final

import asyncpg

from app.db.postgres.connections import connect, unavailable_errors
from app.db.schema import SCHEMA
from app.db.urls import DatabaseURL
from app.domain.errors import RoleError

TIMEOUT_SECONDS: Final = 30.0
# PostgreSQL cuts longer names.
_MAX_NAME_BYTES: Final = 63


def grant_script(
    reader: str,
    database: str,
    timeout_seconds: float = TIMEOUT_SECONDS,
    connections: int | None = None,
) -> str:
    """What lets this role read the reports of this database, as one SQL script.

    Args:
        timeout_seconds: for each statement, and for a transaction that does nothing.
        connections: sessions that it may have at once; None leaves the role's limit as it is,
            which somebody else may have set.

    Raises:
        RoleError: no role could be called so.
    """
    script = _script(
        "grant_reader",
        reader=_quoted_role(reader),
        reader_text=_text(reader),
        database=_quoted(database),
        timeout=f"'{timeout_seconds * 1_000:.0f}ms'",
    )
    if connections is not None:
        script += _script("limit_reader", reader=_quoted_role(reader), connections=str(connections))
    return script


def revoke_script(reader: str, database: str) -> str:
    """What takes it back, with a limit of its sessions unless another database lets it read too."""
    return _script(
        "revoke_reader",
        reader=_quoted_role(reader),
        reader_text=_text(reader),
        database=_quoted(database),
    )


def run_for(reader: str, script: str, url: DatabaseURL, *, lets_in: bool) -> None:
    """Run a script for this role, whole or not at all.

    Args:
        lets_in: the script grants something, which is not for roles that may read more already.

    Raises:
        RoleError: the role is missing, or could read base tables all the same, or the role that we
            connect as may not do this.
        DatabaseUnavailableError
    """
    asyncio.run(_run_for(reader, script, url, lets_in=lets_in))


async def _run_for(reader: str, script: str, url: DatabaseURL, *, lets_in: bool) -> None:
    async with unavailable_errors():
        connection = await connect(url.asyncpg_dsn, "haulage-roles")
        try:
            async with connection.transaction():
                await _require_role(connection, reader)
                # In one go: the server knows best where a statement ends, whatever is in a name.
                await connection.execute(script)
                if lets_in:
                    await _require_no_more(connection, reader)
        except asyncpg.InsufficientPrivilegeError as error:
            raise RoleError(
                f"{error}: let somebody who may run what `--sql` prints, in database "
                f"{await connection.fetchval('select current_database()')}"
            ) from error
        finally:
            connection.terminate()


async def _require_role(connection: "asyncpg.Connection[asyncpg.Record]", reader: str) -> None:
    if not await connection.fetchval(
        "select exists (select from pg_roles where rolname = $1)", reader
    ):
        raise RoleError(
            f"there is no role {reader}: create role {_quoted_role(reader)} login password '...'"
        )


async def _require_no_more(connection: "asyncpg.Connection[asyncpg.Record]", reader: str) -> None:
    # By its own rights, or by those of a role whose place it may take.
    if await connection.fetchval(
        "select exists (select from pg_roles "
        "where pg_has_role($1, oid, 'member') and has_schema_privilege(oid, $2, 'usage'))",
        reader,
        SCHEMA,
    ):
        raise RoleError(
            f"role {reader} may use the schema {SCHEMA} too: it is a superuser, or was granted "
            "that, by way of another role perhaps; take another role for reading reports"
        )


def _script(name: str, **values: str) -> str:
    return (files("app.db") / "roles" / f"{name}.sql").read_text("utf-8").format(**values)


def _quoted_role(name: str) -> str:
    # The server takes public for everybody, quoted or not.
    if name in {"public", "none"} or not 0 < len(name.encode()) <= _MAX_NAME_BYTES:
        raise RoleError(f"no role can be called {name!r}")
    return _quoted(name)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(name: str) -> str:
    """The name as a constant that may stand between dollar signs, too."""
    escaped = name.replace("\\", r"\\").replace("'", "''").replace("$", r"\0024")
    return f"U&'{escaped}'"
