"""`MongoJobsDB`: the jobs in MongoDB, one area a module. It knows the store only."""

from collections.abc import AsyncGenerator
from typing import Final

from app.db.mongo.claiming import MongoClaiming
from app.db.mongo.connections import COMMAND_TIMEOUT_SECONDS
from app.db.mongo.following import MongoFollowing
from app.db.mongo.keys import MongoKeys
from app.db.mongo.places import MongoPlaces
from app.db.mongo.results import MongoResults
from app.db.mongo.retention import MongoRetention
from app.db.mongo.sharing import MongoSharing
from app.db.mongo.signals import WakeUpWatcher
from app.db.mongo.submitting import MongoSubmitting
from app.db.mongo.webhooks import MongoWebhooks
from app.domain.jobs import WakeUp
from app.telemetry import Telemetry, default_telemetry

MAX_POOL_CONNECTIONS: Final = 8


class MongoJobsDB(
    MongoSubmitting,
    MongoClaiming,
    MongoSharing,
    MongoFollowing,
    MongoResults,
    MongoRetention,
    MongoPlaces,
    MongoKeys,
    MongoWebhooks,
):
    """`DBInterface` on a MongoDB replica set, version 6.0 or newer.

    Args:
        url: mongodb:// or mongodb+srv:// URL; its database is "haulage" where it names none.
        default_pipeline: for jobs whose options name none.
        max_connections: of the pool; signals have one more, and so has the watcher while somebody
            iterates wake-ups.
        command_timeout_seconds: for each call, waiting for a connection included.
        notify: False leaves schedulers to their polling.

    Everything is text and numbers, so that a partial of this class can cross into a worker.
    """

    def __init__(
        self,
        url: str,
        *,
        application_name: str = "haulage",
        default_pipeline: str = "thematic",
        max_connections: int = MAX_POOL_CONNECTIONS,
        command_timeout_seconds: float = COMMAND_TIMEOUT_SECONDS,
        notify: bool = True,
        telemetry: Telemetry | None = None,
    ) -> None:
        super().__init__(
            url,
            application_name,
            default_pipeline=default_pipeline,
            max_connections=max_connections,
            command_timeout_seconds=command_timeout_seconds,
            notify=notify,
        )
        self._telemetry = telemetry or default_telemetry()
        self._watcher: WakeUpWatcher | None = None

    async def wake_ups(self) -> AsyncGenerator[WakeUp, None]:
        """See DBInterface."""
        self._watcher = WakeUpWatcher(self._url, self._telemetry)
        watching = self._watcher.wake_ups()
        try:
            async for wake_up in watching:
                yield wake_up
        finally:
            await watching.aclose()

    @property
    def is_listening(self) -> bool:
        """See DBInterface."""
        return self._watcher is not None and self._watcher.is_connected
