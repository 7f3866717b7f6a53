"""Writes below each query of worked-queries.md what it answers on the demo's data.

    python docs/worked_queries.py           write them
    python docs/worked_queries.py --check   only compare; exit code 1 where one answers otherwise

The page is the source of the queries: change them there.
"""

import argparse
import asyncio
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import asyncpg

from docs.database import migrated_database
from docs.demo.data import fill

PAGE: Final = Path(__file__).parent / "worked-queries.md"

_QUERY: Final = re.compile(r"(?P<sql>```sql\n(?P<query>.*?)```)(?:\n\n```text\n.*?```)?", re.DOTALL)


def queries(text: str) -> list[str]:
    """The queries of a page."""
    return [found["query"] for found in _QUERY.finditer(text)]


async def rendered(text: str, connection: "asyncpg.Connection[asyncpg.Record]") -> str:
    """The page with what its queries answer now."""
    written, end = [], 0
    for found in _QUERY.finditer(text):
        table = await answer(connection, found["query"])
        written += [text[end : found.start()], f"{found['sql']}\n\n```text\n{table}```"]
        end = found.end()
    return "".join([*written, text[end:]])


async def answer(connection: "asyncpg.Connection[asyncpg.Record]", query: str) -> str:
    """What a query answers, as a table of text that ends with a line break.

    Raises:
        ValueError: it answers nothing, which shows nobody what it is for.
    """
    statement = await connection.prepare(query)
    names = [column.name for column in statement.get_attributes()]
    rows = [tuple(row) for row in await statement.fetch()]
    cells = [[_shown(value) for value in row] for row in rows]
    is_right = [all(map(_is_number, column)) for column in zip(*rows, strict=True)]
    if not rows:
        raise ValueError(f"nothing is answered to: {query}")
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = [_line(row, widths, is_right) for row in [names, *cells]]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "".join(f"{line}\n" for line in lines)


@asynccontextmanager
async def filled(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A session of a new database that has the demo's data."""
    connection = await asyncpg.connect(url)
    try:
        await fill(connection)
        yield connection
    finally:
        await connection.close()


def main(arguments: list[str] | None = None) -> int:
    """Write or compare; the exit code."""
    parser = argparse.ArgumentParser(description="Write what the worked queries answer.")
    parser.add_argument("--check", action="store_true", help="only compare")
    only_check = parser.parse_args(arguments).check
    before = PAGE.read_text("utf-8")
    with migrated_database() as url:
        after = asyncio.run(_rendered_on(url, before))
    if before == after:
        return 0
    if only_check:
        print(f"{PAGE.name}: run `python docs/worked_queries.py`", file=sys.stderr)
        return 1
    PAGE.write_text(after, "utf-8")
    return 0


async def _rendered_on(url: str, text: str) -> str:
    async with filled(url) as connection:
        return await rendered(text, connection)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, Decimal)) and not isinstance(value, bool))


def _line(row: Sequence[str], widths: Sequence[int], is_right: Sequence[bool]) -> str:
    cells = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(row, widths, is_right, strict=True)
    ]
    return " | ".join(cells).rstrip()


if __name__ == "__main__":
    sys.exit(main())
