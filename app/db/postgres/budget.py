"""How many connections the server has left, asked once at start; it must never hold one."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import asyncpg

from app.db.postgres.connections import connect
from app.db.urls import DatabaseURL

# The least of what server, database and role leave to a role like ours; only superusers may take
# the reserved ones, and no limit of a role or a database counts for them.
_LEFT: Final = """
select least(
    current_setting('max_connections')::int
        - case when r.rolsuper then 0 else
            current_setting('superuser_reserved_connections')::int
            + coalesce(current_setting('reserved_connections', true)::int, 0)
        end
        - count(*) filter (where a.datname is not null),
    case when d.datconnlimit >= 0 and not r.rolsuper then
        d.datconnlimit - count(*) filter (where a.datname = d.datname)
    end,
    case when r.rolconnlimit >= 0 and not r.rolsuper then
        r.rolconnlimit - count(*) filter (where a.usename = r.rolname)
    end
)
from pg_stat_activity a, pg_roles r, pg_database d
where a.pid <> pg_backend_pid()
  and r.rolname = current_user
  and d.datname = current_database()
group by r.rolsuper, r.rolconnlimit, d.datconnlimit
"""


def connections_left(url: DatabaseURL) -> int | None:
    """How many more connections we could open now; None where the server does not tell."""
    # In a thread, so that callers inside a running event loop (uvicorn's factory) work too.
    with ThreadPoolExecutor(1, thread_name_prefix="haulage-budget") as executor:
        return executor.submit(lambda: asyncio.run(_ask(url))).result()


async def _ask(url: DatabaseURL) -> int | None:
    try:
        connection = await connect(url.asyncpg_dsn, "haulage-budget")
    except asyncpg.exceptions.InsufficientResourcesError:
        return 0
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InternalClientError):
        return None
    try:
        left: int | None = await connection.fetchval(_LEFT)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        return None
    finally:
        connection.terminate()
    return left
