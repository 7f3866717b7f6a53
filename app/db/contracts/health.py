"""What tells whether a store can be worked with."""

from typing import Protocol


class HealthStore(Protocol):
    """The part of `DBInterface` that health checks ask."""

    @property
    def is_listening(self) -> bool:
        """Whether wake-ups come in at present; while they do not, whoever iterates them polls."""

    async def ping(self) -> None:
        """Return once the store has answered; DatabaseUnavailableError otherwise."""

    async def schema_revision(self) -> str | None:
        """Which revision of the schema the store has, None without any."""
