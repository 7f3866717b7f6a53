"""Memory or disk of one process that requests share, so that many at once cannot exhaust it."""

from http import HTTPStatus

from app.api.problems import RETRY_AFTER_SECONDS, Problem


class Room:
    """So many bytes, taken and given back; for the event loop's thread.

    Args:
        purpose: said to whom there is no room for.
    """

    def __init__(self, max_bytes: int, purpose: str) -> None:
        self._free = max_bytes
        self._purpose = purpose

    def take(self, size_bytes: int) -> None:
        """Hold so much more; Problem 503 where it is not there."""
        if size_bytes > self._free:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "busy",
                f"there is no more room for {self._purpose} at this moment",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS), "Connection": "close"},
            )
        self._free -= size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Hold so much less."""
        self._free += size_bytes
