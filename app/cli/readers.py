"""`haulage db grant-reader` and `revoke-reader`: roles for those who report in SQL."""

from typing import Final

import click

from app.config import load_settings

# A server never has more.
_MOST_CONNECTIONS: Final = 262_143


@click.command(name="grant-reader")
@click.argument("name")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1, max=86_400),
    default=30.0,
    show_default=True,
    help="Seconds after which its statements, and its idle transactions, are ended.",
)
@click.option(
    "--connections",
    type=click.IntRange(min=1, max=_MOST_CONNECTIONS),
    help="Sessions that it may have at once, on the whole server.  [default: what it may now]",
)
@click.option("--sql", "is_printed", is_flag=True, help="Only print the statements.")
def grant_reader(name: str, timeout: float, connections: int | None, *, is_printed: bool) -> None:
    """Let the role NAME read the views of the schema `reporting`, and no table.

    Its sessions begin read-only and with time-outs. The role has to be there, such as by
    `create role NAME login password '...'`. Run this as the role that upgrades the schema, or as
    one that may act for it: views of later versions are readable too.

    Give all readers together fewer sessions than the server has cores: reports that run all the
    time on every core hold up whoever claims jobs.
    """
    from app.db.readers import grant_script

    script = grant_script(name, _database(), timeout, connections)
    if is_printed:
        click.echo(script, nl=False)
        return
    _run(name, script, lets_in=True)
    bounds = f"each statement {timeout:g} s at most"
    if connections is not None:
        bounds += f", in {connections} session{'s' * (connections > 1)} at once"
    click.echo(f"{name} reads the views of the schema reporting, {bounds}")


@click.command(name="revoke-reader")
@click.argument("name")
@click.option("--sql", "is_printed", is_flag=True, help="Only print the statements.")
def revoke_reader(name: str, *, is_printed: bool) -> None:
    """Take back what `grant-reader` gave to the role NAME; the role stays.

    A limit of its sessions goes too, unless it reads reports of another database of this server.
    """
    from app.db.readers import revoke_script

    script = revoke_script(name, _database())
    if is_printed:
        click.echo(script, nl=False)
        return
    _run(name, script, lets_in=False)
    click.echo(f"{name} reads nothing of Haulage any more")


def _run(name: str, script: str, *, lets_in: bool) -> None:
    from app.db import migrate, readers
    from app.db.opening import open_database

    with open_database(load_settings()) as opened:
        url = opened.postgres_url
        migrate.state(url).require_current()
        readers.run_for(name, script, url, lets_in=lets_in)


def _database() -> str:
    """The name of the settings' database; nothing is opened for it."""
    from app.db.opening import DATABASE_NAME, Database, parse_url

    given = load_settings().database_url
    if given is None:
        return DATABASE_NAME
    url = Database(parse_url(given.get_secret_value())).postgres_url
    return url.database or url.user or DATABASE_NAME
