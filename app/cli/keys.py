"""`haulage keys`: who may use the API of the database that is set."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

import click

from app.cli import EXIT_FAILED
from app.config import load_settings
from app.db.interface import DBInterface
from app.domain.keys import MAX_KEY_NAME_CHARACTERS, ApiKey, Scope, new_key

_T = TypeVar("_T")


@click.group(name="keys")
def keys() -> None:
    """Look after API keys. As soon as one is active, every request needs one.

    A running service notices within five seconds.
    """


@keys.command()
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice([scope.value for scope in Scope]),
    default=Scope.SUBMIT.value,
    show_default=True,
    help="read: look at everything; submit: enqueue and cancel one's own, too; admin: everything.",
)
@click.option("--max-pending", type=click.IntRange(min=0), help="Cap on its pending jobs.")
@click.option("--max-bytes", type=click.IntRange(min=0), help="Cap on their payloads' bytes.")
@click.option("--unstored", is_flag=True, help="Only print one, for HAULAGE_ADMIN_KEY.")
def create(
    name: str, scope: str, max_pending: int | None, max_bytes: int | None, *, unstored: bool
) -> None:
    """Make a key called NAME and print it: this once, only its SHA-256 is stored."""
    if not 0 < len(name) <= MAX_KEY_NAME_CHARACTERS or not name.isprintable():
        raise click.BadParameter(f"1 to {MAX_KEY_NAME_CHARACTERS} printable characters")
    key = new_key()
    if not unstored:
        stored = _on_database(
            lambda db: db.insert_key(
                name,
                key,
                Scope(scope),
                max_pending_jobs=max_pending,
                max_pending_bytes=max_bytes,
            )
        )
        click.echo(f"id {stored.id}, scope {scope}; it is shown only now:", err=True)
    click.echo(key)


@keys.command(name="list")
def list_keys() -> None:
    """List the keys: id, first letters, scope, name, caps and dates, never the keys."""
    for key in _on_database(lambda db: db.list_keys()):
        click.echo("  ".join(_columns(key)))


@keys.command()
@click.argument("key", metavar="ID|PREFIX")
def revoke(key: str) -> None:
    """Make a key useless for good, named by its id or by its first letters."""
    active = [known for known in _on_database(lambda db: db.list_keys()) if not known.revoked_at]
    meant = [known for known in active if key in (known.id, known.prefix)]
    if len(meant) != 1:
        several = ", ".join(known.id for known in meant)
        click.echo(
            f"haulage: {key} means several keys, name one by its id: {several}"
            if meant
            else f"haulage: no active key {key}",
            err=True,
        )
        raise click.exceptions.Exit(EXIT_FAILED)
    _on_database(lambda db: db.revoke_key(meant[0].id))
    click.echo(f"revoked {meant[0].prefix} ({meant[0].name}); services refuse it within 5 s")
    if len(active) == 1:
        click.echo("it was the last one: requests are refused (401) until another one is made")


def _columns(key: ApiKey) -> list[str]:
    caps = [
        f"{word} {cap}"
        for word, cap in (("jobs", key.max_pending_jobs), ("bytes", key.max_pending_bytes))
        if cap is not None
    ]
    return [
        key.id,
        key.prefix,
        f"{','.join(key.scopes):6}",
        f"created {_day(key.created_at)}",
        f"used {_day(key.last_used_at)}",
        f"revoked {_day(key.revoked_at)}" if key.revoked_at else "active",
        *caps,
        key.name,
    ]


def _day(instant: datetime | None) -> str:
    return f"{instant:%Y-%m-%d %H:%M}" if instant else "never"


def _on_database(work: Callable[[DBInterface], Awaitable[_T]]) -> _T:
    from app.main import on_database

    return on_database(load_settings(), work)
