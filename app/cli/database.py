"""`haulage db`: the bundled server, and the schema of whichever database is set."""

import dataclasses
import os

import click

from app.cli.readers import grant_reader, revoke_reader
from app.config import Settings, load_settings
from app.domain.errors import EmbeddedDatabaseError


@click.group(name="db")
def database() -> None:
    """Look after the database: the bundled server and the schema."""


database.add_command(grant_reader)
database.add_command(revoke_reader)


@database.command()
def start() -> None:
    """Start the bundled PostgreSQL and leave it running."""
    from app.db.opening import DATABASE_NAME, embedded_server

    settings = _bundled()
    with embedded_server(settings) as server:
        server.keep_running()
        server.ensure_database(DATABASE_NAME)
        status = server.status()
    click.echo(f"PostgreSQL {status.version} runs on port {status.port}, pid {status.pid}")
    click.echo(f"data: {status.data_folder}")


@database.command()
@click.option("--force", is_flag=True, help="Also while other processes use it.")
def stop(*, force: bool) -> None:
    """Stop the bundled PostgreSQL."""
    from app.db.opening import embedded_server

    server = embedded_server(_bundled())
    was_running = server.status().is_running
    server.stop(force=force)
    click.echo("stopped" if was_running else "was not running")


@database.command()
def url() -> None:
    """Print the URL of the database, password included."""
    from app.db.mongo_urls import MongoURL
    from app.db.opening import DATABASE_NAME, embedded_server, parse_url

    settings = load_settings()
    if settings.database_url is not None:
        given = parse_url(settings.database_url.get_secret_value())
        click.echo(given.text if isinstance(given, MongoURL) else given.asyncpg_dsn)
        return
    server = embedded_server(settings)
    if not server.status().is_running:
        raise EmbeddedDatabaseError("the bundled server is not running: `haulage db start`")
    click.echo(server.url(DATABASE_NAME))


@database.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def psql(arguments: tuple[str, ...]) -> None:
    """Open psql on the database; further arguments go to it (-c 'select ...')."""
    from app.db.opening import DATABASE_NAME, open_database

    settings = load_settings()
    with open_database(settings) as opened:
        url = opened.postgres_url
        if opened.embedded is None:
            # The password in the environment: arguments are for everybody to see.
            shown = dataclasses.replace(url, password=None).asyncpg_dsn
            environment = os.environ | {"PGPASSWORD": url.password or ""}
            _replace_process(["psql", shown, *arguments], environment)
            return
        command, environment = opened.embedded.psql_command(DATABASE_NAME, *arguments)
        code = _run(command, environment)
    raise click.exceptions.Exit(code)


@database.command()
@click.argument("revision", default="head")
def upgrade(revision: str) -> None:
    """Bring the schema to REVISION (default: the newest); rebuild indexes that no search uses."""
    from app.db import migrate, schemas
    from app.db.opening import open_database
    from app.db.urls import DatabaseURL

    with open_database(load_settings()) as opened:
        change = schemas.upgrade(opened.url, revision)
        rebuilt = []
        if isinstance(opened.url, DatabaseURL):
            rebuilt = migrate.rebuild_indexes(opened.url)
    if change.from_revision == change.to_revision:
        click.echo(f"already at {change.to_revision}")
    else:
        click.echo(f"upgraded from {change.from_revision or 'nothing'} to {change.to_revision}")
    for name in rebuilt:
        click.echo(f"{name}: mended, its build had been broken off")


@database.command()
@click.argument("revision")
@click.option("--yes", is_flag=True, help="Do not ask.")
def downgrade(revision: str, *, yes: bool) -> None:
    """Take the schema back to REVISION; `base` removes it with everything in it.

    Says before what will be lost.
    """
    from app.db import migrate
    from app.db.losses import downgrade_losses
    from app.db.opening import open_database

    with open_database(load_settings()) as opened:
        url = opened.postgres_url
        for line in downgrade_losses(url, revision):
            click.echo(line)
        if not yes:
            click.confirm("Go on?", abort=True)
        migrate.downgrade(url, revision)
        after = migrate.state(url)
    click.echo(f"now at {after.found or 'nothing'}")


@database.command()
@click.argument("revisions", metavar="[FROM:TO]", default="head")
@click.option("--down", is_flag=True, help="Those of the way back; FROM is the newer one then.")
def sql(revisions: str, *, down: bool) -> None:
    """Print the statements of an upgrade, by default from an empty database to the newest schema.

    No database is asked. FROM and TO are revisions, `base` or `head`.
    """
    from app.db import migrate
    from app.db.opening import parse_url, postgres_alone

    given = load_settings().database_url
    if given is not None:
        postgres_alone(parse_url(given.get_secret_value()))
    click.echo(migrate.sql_of(revisions, is_downgrade=down), nl=False)


@database.command()
def current() -> None:
    """Print the revision of the schema and the one that this program needs."""
    from app.db import schemas
    from app.db.opening import open_database

    with open_database(load_settings()) as opened:
        found = schemas.state(opened.url)
    click.echo(f"database: {found.found or 'none'}\nprogram:  {found.wanted}")


@database.command()
def check() -> None:
    """Compare the schema with what this program needs; exit code 1 where they differ."""
    from app.db import migrate, schemas
    from app.db.opening import open_database
    from app.db.urls import DatabaseURL

    with open_database(load_settings()) as opened:
        schemas.state(opened.url).require_current()
        differences = schemas.differences(opened.url)
        broken = []
        if isinstance(opened.url, DatabaseURL):
            broken = migrate.invalid_indexes(opened.url)
    for name in broken:
        click.echo(
            f"{name}: no search uses this index, its build was broken off or is under way; "
            "`haulage db upgrade` mends it",
            err=True,
        )
    if differences:
        click.echo(differences, err=True)
    if differences or broken:
        raise click.exceptions.Exit(1)
    click.echo("the schema is as it should be")


@database.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON: bytes, seconds, instants.")
@click.option(
    "--warn-seconds",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Warn of transactions that have been open for longer.",
)
def stats(*, as_json: bool, warn_seconds: float) -> None:
    """Tell rows, bytes, dead rows, bloat of indexes and the oldest snapshots.

    Row counts and bloat are estimates out of the server's statistics. What sessions of other roles
    do is shown to superusers and members of pg_read_all_stats alone.
    """
    from rich.console import Console

    from app.cli import size
    from app.db.opening import open_database
    from app.db.size import database_size

    with open_database(load_settings()) as opened:
        found = database_size(opened.postgres_url)
    if as_json:
        click.echo(size.as_json(found, warn_seconds))
    else:
        size.show(found, warn_seconds, Console())


def _bundled() -> Settings:
    settings = load_settings()
    if settings.database_url is not None:
        raise EmbeddedDatabaseError(
            "HAULAGE_DATABASE_URL or DATABASE_URL is set: unset it to use the bundled server"
        )
    return settings


def _replace_process(command: list[str], environment: dict[str, str]) -> None:
    import shutil

    program = shutil.which(command[0])
    if program is None:
        raise EmbeddedDatabaseError("no psql on PATH: install PostgreSQL's client")
    os.execve(program, command, environment)  # noqa: S606  psql takes over this terminal


def _run(command: list[str], environment: dict[str, str]) -> int:
    import signal
    import subprocess

    # Ctrl-C belongs to psql, which then only cancels its query.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.run(command, env=environment, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, previous)
