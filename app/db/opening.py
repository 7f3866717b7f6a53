"""Which database: the one that the settings name, else the bundled server, started if need be."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeAlias

from app.config import Settings
from app.db.mongo_urls import MongoURL
from app.db.postgres.embedded import EmbeddedPostgres, default_data_dir
from app.db.urls import DatabaseURL
from app.domain.errors import ConfigurationError

DATABASE_NAME: Final = "haulage"

AnyURL: TypeAlias = DatabaseURL | MongoURL


@dataclass(frozen=True, slots=True)
class Database:
    """A database that is there; closing it gives up the bundled server, where it is that one."""

    url: AnyURL
    embedded: EmbeddedPostgres | None = None

    @property
    def postgres_url(self) -> DatabaseURL:
        """The URL, for what only PostgreSQL can do.

        Raises:
            ConfigurationError: it is another database.
        """
        return postgres_alone(self.url)

    def close(self) -> None:
        """Stop being a user of the bundled server; the last one stops it. Twice is harmless."""
        if self.embedded is not None:
            self.embedded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def embedded_server(settings: Settings) -> EmbeddedPostgres:
    """The bundled PostgreSQL of these settings, not started."""
    return EmbeddedPostgres(settings.data_dir or default_data_dir())


def parse_url(text: str) -> AnyURL:
    """The database that a URL names; ConfigurationError where it is of no known kind."""
    return MongoURL.parse(text) if MongoURL.matches(text) else DatabaseURL.parse(text)


def postgres_alone(url: AnyURL) -> DatabaseURL:
    """The URL, for what only PostgreSQL can do; ConfigurationError where it is another database."""
    if isinstance(url, MongoURL):
        remedy = "this works on PostgreSQL only"
        raise ConfigurationError("HAULAGE_DATABASE_URL", url.masked, remedy)
    return url


def open_database(settings: Settings) -> Database:
    """The given database, or the bundled one: running and with a database of ours in it.

    Works under a running event loop too, and then blocks it: call it before serving.
    """
    if settings.database_url is not None:
        return Database(parse_url(settings.database_url.get_secret_value()))
    with ThreadPoolExecutor(1, thread_name_prefix="haulage-database") as executor:
        return executor.submit(_start_embedded, settings).result()


def _start_embedded(settings: Settings) -> Database:
    embedded = embedded_server(settings)
    embedded.start()
    try:
        embedded.ensure_database(DATABASE_NAME)
    except BaseException:
        embedded.close()
        raise
    return Database(DatabaseURL.parse(embedded.url(DATABASE_NAME)), embedded)
