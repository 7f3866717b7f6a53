"""Views and functions: the chain of revisions leaves what the files in app/db say."""

import asyncpg
from migrations.snapshot import schema_of

from app.db.definitions import ORDER, source, statements


async def test_the_chain_leaves_the_views_of_the_files(database_url: str) -> None:
    by_the_chain = await schema_of(database_url)

    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("drop schema reporting cascade; create schema reporting")
        await connection.execute(source("reporting"))
    finally:
        await connection.close()

    assert await schema_of(database_url) == by_the_chain


async def test_the_chain_leaves_the_functions_of_the_files(database_url: str) -> None:
    by_the_chain = await schema_of(database_url)

    connection = await asyncpg.connect(database_url)
    try:
        for name in ORDER["functions"]:
            await connection.execute(f"drop function haulage.{name}")
        assert await schema_of(database_url) != by_the_chain
        await connection.execute(source("functions"))
    finally:
        await connection.close()

    assert await schema_of(database_url) == by_the_chain


def test_a_file_is_taken_apart_at_the_ends_of_its_statements() -> None:
    text = (
        "-- a; comment\ncreate view a as select ';' as b;\n\ncomment on view a is 'x; y';\n"
        "create function f() returns int language sql as $$ select 1;\nselect 2;\n$$;\n"
        "create function g() as $body$ begin $$; $body$;"
    )

    assert list(statements(text)) == [
        "-- a; comment\ncreate view a as select ';' as b",
        "comment on view a is 'x; y'",
        "create function f() returns int language sql as $$ select 1;\nselect 2;\n$$",
        "create function g() as $body$ begin $$; $body$",
    ]
