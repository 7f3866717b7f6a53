"""One way to write any result in any form."""

from types import MappingProxyType
from typing import Any, BinaryIO

from pydantic import ValidationError

from app.domain.errors import ExportError
from app.results.exports.delimited import write_csv
from app.results.exports.forms import PARTS, SHEETS
from app.results.exports.page import write_page
from app.results.exports.tables import analysis_table, flat_table
from app.results.exports.texts import Texts
from app.results.exports.workbook import write_workbook
from app.results.themes import SCHEMA, ThemesResult


def analysis_of(result: Any) -> ThemesResult | None:
    """A decoded result as an analysis, None where it does not say that it is one.

    Raises:
        ExportError: it says so, and is none.
    """
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        return None
    try:
        return ThemesResult.model_validate(result)
    except ValidationError as error:
        place = "/".join(map(str, error.errors()[0]["loc"]))
        raise ExportError(f"the result is no sound {SCHEMA}: /{place}") from None


def write_export(
    result: Any,
    form: str,
    part: str | None,
    file: BinaryIO,
    *,
    name: str,
    texts: Texts = MappingProxyType({}),
) -> None:
    """Write a result.

    Args:
        result: decoded, or an analysis.
        form: one of `FORMS`.
        part: one of `PARTS`, for CSV.
        name: whose result it is, for a page's foot.
        texts: of the answers, as far as they are known.

    Raises:
        ExportError: it cannot be written in this form.
    """
    analysis = result if isinstance(result, ThemesResult) else analysis_of(result)
    if analysis is None:
        _write_generic(result, form, part, file)
        return
    match form:
        case "csv":
            write_csv(analysis_table(analysis, part or PARTS[0], texts), file)
        case "xlsx":
            write_workbook([analysis_table(analysis, each, texts) for each in SHEETS], file)
        case _:
            write_page(analysis, file, name)


def _write_generic(result: Any, form: str, part: str | None, file: BinaryIO) -> None:
    if form == "html" or part is not None:
        raise ExportError("the result is no thematic analysis; take it as JSON")
    table = flat_table(result)
    if form == "csv":
        write_csv(table, file)
    else:
        write_workbook([table], file)
