"""What Haulage asks of a database about results."""

from typing import Protocol

from app.domain.results import PartPage, ResultState, ThemeQuotes


class ResultStore(Protocol):
    """What completed jobs left; see `DBInterface` for what holds of every method.

    Parts are JSON text that the store cuts out of a result of schema themes/1: whoever asks decodes
    nothing. They are None where the job has no result or one of another schema, or is unknown. A
    result that a job left before it was run again is none.
    """

    async def get_result(self, job_id: str) -> bytes | None:
        """The result of a completed job as JSON bytes, else None; JobNotFoundError."""

    async def list_result_pieces(self, job_id: str) -> list[bytes]:
        """The same in pieces of at most RESULT_PIECE_BYTES, [] without one or if unknown."""

    async def get_result_state(self, job_id: str) -> ResultState:
        """Whether there is a result, and which one; JobNotFoundError."""

    async def get_result_themes(self, job_id: str) -> str | None:
        """An object with `themes` as they are in the result, and how many answers have none.

        It has the result's other parts as well, but for the assignments, samples and costs.
        """

    async def get_theme_quotes(
        self, job_id: str, theme_id: str, limit: int, *, after: int = 0
    ) -> ThemeQuotes | None:
        """The next quotes of a theme or sub-theme; None where there is none of this id.

        Args:
            after: how many are left out from the first one on.
        """

    async def list_assignments(self, job_id: str, limit: int, *, after: int = 0) -> PartPage | None:
        """Where the next rows went, in the order of the input."""
