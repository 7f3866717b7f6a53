"""The schema of whichever database there is: its revision, upgrades, and what differs.

PostgreSQL has steps (`app.db.migrate`), MongoDB collections and indexes that are compared with
those of the program.
"""

from types import ModuleType

from app.db import migrate
from app.db.migrate import SchemaChange, SchemaState
from app.db.mongo_urls import MongoURL
from app.db.opening import AnyURL
from app.domain.errors import ConfigurationError
from app.telemetry import Telemetry


def state(url: AnyURL) -> SchemaState:
    """The revision of the database beside the one that this program needs."""
    if not isinstance(url, MongoURL):
        return migrate.state(url)
    mongo = _upgrading(url)
    found: str | None = mongo.found_revision(url.text)
    # Revisions are numbered with as many digits each.
    wanted: str = mongo.REVISION
    return SchemaState(found, wanted, is_ahead=found is not None and found > wanted)


def upgrade(
    url: AnyURL, revision: str = "head", telemetry: Telemetry | None = None
) -> SchemaChange:
    """Bring the schema to `revision`; nothing happens where it is there already.

    Raises:
        SchemaMismatchError: a newer program made this schema.
        DatabaseUnavailableError: upgrading again goes on where this one ended.
        ConfigurationError: there is no such revision; on MongoDB there is the newest alone.
    """
    if not isinstance(url, MongoURL):
        return migrate.upgrade(url, revision, telemetry)
    before = state(url)
    if before.is_ahead:
        before.require_current()
    if revision not in {"head", before.wanted}:
        raise ConfigurationError("revision", revision, "on MongoDB there is the newest one alone")
    _upgrading(url).upgrade(url.text)
    change = SchemaChange(before.found, before.wanted)
    if telemetry is not None and before.found != before.wanted:
        telemetry.emit(
            "schema.upgraded",
            from_revision=change.from_revision,
            to_revision=change.to_revision,
        )
    return change


def differences(url: AnyURL) -> str | None:
    """What the database's schema differs in from the program's, None where they agree."""
    if not isinstance(url, MongoURL):
        return migrate.differences(url)
    found: str | None = _upgrading(url).differences(url.text)
    return found


def _upgrading(url: MongoURL) -> ModuleType:
    try:
        from app.db.mongo import upgrading  # noqa: PLC0415  its driver is an extra
    except ModuleNotFoundError as error:
        raise url.without_driver from error
    return upgrading
