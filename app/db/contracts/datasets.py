"""What Haulage asks of a database about datasets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from app.domain.sharing import Dataset, DatasetSummary, JsonRow


class DatasetStore(Protocol):
    """Tables of texts that jobs read; see `DBInterface` for what holds of every method."""

    async def insert_dataset(
        self,
        name: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        sha256: str,
        detected: Mapping[str, Any],
        submitted_by: str = "",
    ) -> Dataset:
        """Store a table of texts whole or not at all; `rows` is taken in as it is written.

        Every call makes a dataset of its own, also of the same file: how a file is read may differ.

        Args:
            rows: the cells of each in the order of `columns`.
            sha256: of the file that it came from, 64 hexadecimal digits.
            detected: what was found out about that file (JSON).
            submitted_by: the id of a key, "" for nobody known.

        Raises:
            DatasetError: a row is not as wide as the table or holds what cannot be stored, or there
                are more than MAX_DATASET_ROWS, MAX_DATASET_COLUMNS or MAX_CELL_CHARACTERS.
            TooLargeError: above MAX_DATASET_BYTES in all cells together, MAX_DATASET_ROW_BYTES in
                one row, MAX_DATASET_HEADER_BYTES in name and columns; and for `detected`.
            InvalidJsonError: `detected`, a name or a column could not come back unchanged.
        """

    async def get_dataset(self, dataset_id: str) -> Dataset:
        """What is known of a dataset; DatasetNotFoundError."""

    async def list_datasets(
        self, limit: int, *, before_id: str | None = None
    ) -> list[DatasetSummary]:
        """At most `limit` datasets, the newest first.

        Args:
            before_id: only those that are older than this one, which need not exist any more.
        """

    async def list_datasets_of_file(self, sha256: str) -> list[Dataset]:
        """The DATASETS_OF_FILE newest datasets that came from this file, the newest first."""

    async def list_dataset_rows(
        self, dataset_id: str, positions: Sequence[int], *, after_row: int = 0
    ) -> list[tuple[int, list[str]]]:
        """The next DATASET_PAGE_ROWS rows at most, [] after the last one or if unknown.

        Args:
            positions: which cells of each, in this order; the first column has position 0.
            after_row: rows are numbered from 1 without a gap.

        Returns pairs of row number and cells.
        """

    async def list_dataset_json(
        self, dataset_id: str, limit: int, *, after_row: int = 0
    ) -> list[JsonRow]:
        """The next `limit` rows at most with all their cells, each as JSON text by the store.

        Fewer where they would be more than MAX_PAGE_BYTES together, but one at least; [] after the
        last one or if unknown.
        """

    async def delete_dataset(self, dataset_id: str) -> None:
        """Remove a dataset with its rows; ended jobs that named it name none any more.

        A job that begins to name it at the same moment either keeps it (this then raises) or is
        itself refused.

        Raises:
            DatasetNotFoundError
            DatasetInUseError: a pending or running job names it; nothing is changed.
        """
