"""A result in another form, made aside (see `app.api.offloading`)."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Final

from app.db.interface import DBInterface
from app.domain.errors import DatasetNotFoundError, ExportError
from app.results.exports.texts import Texts, inline_texts, rows_texts, text_columns
from app.results.exports.writing import analysis_of, write_export
from app.results.themes import ThemesResult

WITH_TEXTS: Final = frozenset({("csv", None), ("csv", "responses"), ("xlsx", None)})
"""Forms and parts that show whole answers."""


async def export(
    db: DBInterface, file: BinaryIO, *, job_id: str, form: str, part: str | None
) -> None:
    """Write the job's result to `file`, with what people wrote as far as it is still stored.

    Raises:
        JobNotFoundError
        ExportError: it cannot be written in this form, or is gone.
    """
    stored = await db.get_result(job_id)
    if stored is None:
        raise ExportError(f"job {job_id} has no result any more")
    result = await asyncio.to_thread(json.loads, stored)
    analysis = await asyncio.to_thread(analysis_of, result)
    texts: Texts = {}
    if analysis is not None and (form, part) in WITH_TEXTS:
        payload = await asyncio.to_thread(json.loads, await db.get_payload(job_id))
        texts = await _texts(db, analysis, payload)

    def write() -> None:
        given = result if analysis is None else analysis
        write_export(given, form, part, file, name=f"job {job_id}", texts=texts)
        file.flush()

    await asyncio.to_thread(write)


async def _texts(db: DBInterface, analysis: ThemesResult, payload: Mapping[str, Any]) -> Texts:
    if not analysis.input.questions:
        return {}
    named = payload.get("id_column")
    id_column = named if isinstance(named, str) else None
    if analysis.input.dataset is None:
        return inline_texts(analysis, payload.get("answers"), id_column)
    # Removed meanwhile, or another one: the export is made without.
    with suppress(DatasetNotFoundError, ValueError):
        dataset = await db.get_dataset(analysis.input.dataset)
        id_column = id_column or dataset.detected.get("id_column")
        wanted = [*text_columns(analysis), *([] if id_column is None else [id_column])]
        positions = [dataset.columns.index(name) for name in wanted]
        rows: list[dict[str, str]] = []
        while page := await db.list_dataset_rows(dataset.id, positions, after_row=len(rows)):
            rows += [dict(zip(wanted, cells, strict=True)) for _, cells in page]
        return rows_texts(analysis, rows, id_column)
    return {}
