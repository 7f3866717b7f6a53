"""Records of a delimited text: which delimiter it has, and which of its rows are headers."""

import csv
import io
import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

from app.domain.errors import DatasetError

DELIMITERS: Final = (",", ";", "\t", "|")
NO_DELIMITER: Final = "\x1f"
"""Stands for a file of one column; a sign that no answer holds."""

MAX_HEADER_ROWS: Final = 3
MAX_CELLS: Final = 5_000_000
"""Rows times columns of any table; as Python objects these take about 500 MiB."""

MOSTLY: Final = 0.5
FEW_BLANKS: Final = 0.6
SHORT_NAME: Final = 20
"""Characters of a column's name that stands above its question."""

QUESTION_WORDS: Final = 4
_CODE: Final = re.compile(r"(?:q|qid|question|v|var)[ _.]?[0-9]+[\w.]*", re.IGNORECASE)
"""A column's name that stands for a question: Q1, QID3_TEXT, q2a."""

_HINT: Final = re.compile(r"sep=([^\w\s\"]|\t)[;,\t]*\r?\n", re.IGNORECASE)
"""What Excel wants as a first line, to know the delimiter of the others."""

_QUALTRICS_IMPORT: Final = re.compile(r'\s*\{\s*"ImportId"')
_SURVEYMONKEY_ID: Final = "respondent id"
_TIMESTAMP: Final = "timestamp"
_QUALTRICS_PAIRS: Final = frozenset(
    {("v1", "responseid"), ("responseid", "response id"), ("startdate", "start date")}
)
"""A column's name, and what stands below it."""

_OPEN_ENDED: Final = frozenset({"", "response", "open-ended response"})


@dataclass(frozen=True, slots=True)
class Record:
    """One row of cells and the line on which it starts, counted from 1."""

    line: int
    cells: list[str]


@dataclass(frozen=True, slots=True)
class Header:
    """The header rows: how many, whose export it looks like, names, and questions by column."""

    rows: int
    source: str
    columns: list[str]
    questions: dict[str, str]


def records(text: str, max_rows: int) -> tuple[list[Record], str | None]:
    """The records of `text` without blank ones, and the delimiter; None for one column.

    Reading ends a little after `max_rows` rows or `MAX_CELLS`, so that a caller sees that there are
    more.

    Every candidate is tried, and the one wins that gives the most rows as wide as the first. (The
    standard library's sniffer takes letters for delimiters where a quoted cell spans lines.)

    Raises:
        DatasetError: quotes do not match.
    """
    hint = _HINT.match(text)
    start = hint.end() if hint else 0
    best: tuple[int, list[Record], str] | None = None
    broken: _BrokenQuotesError | None = None
    for delimiter in (hint[1],) if hint else DELIMITERS:
        try:
            parsed = _parse(text, delimiter, max_rows, start)
        except _BrokenQuotesError as error:
            if error.is_table and broken is None:
                broken = error
            continue
        equal = _rows_as_wide_as_the_first(parsed)
        if equal > MOSTLY * len(parsed) and (best is None or equal > best[0]):
            best = equal, parsed, delimiter
    if best is not None:
        return best[1], best[2]
    try:
        if broken is not None:
            raise broken
        return _parse(text, NO_DELIMITER, max_rows, start), None
    except _BrokenQuotesError as error:
        raise DatasetError(
            f"line {error.line}: {error}; close every quote and double those inside a quoted cell"
        ) from error


class _BrokenQuotesError(Exception):
    """`is_table` where the rows before it had several cells: it is no file of one column."""

    def __init__(self, line: int, reason: str, *, is_table: bool) -> None:
        super().__init__(reason)
        self.line = line
        self.is_table = is_table


def _parse(text: str, delimiter: str, max_rows: int, start: int) -> list[Record]:
    file = io.StringIO(text, newline="")
    file.seek(start)
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    parsed = []
    above = text.count("\n", 0, start)
    line = above + 1
    size = 0
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                parsed.append(Record(line, cells))
                size += len(cells)
            if len(parsed) > max_rows + MAX_HEADER_ROWS or size > MAX_CELLS:
                break
            line = above + reader.line_num + 1
    except csv.Error as error:
        is_table = bool(parsed) and len(parsed[0].cells) > 1
        raise _BrokenQuotesError(line, str(error), is_table=is_table) from error
    return parsed


def _rows_as_wide_as_the_first(parsed: list[Record]) -> int:
    """0 where the first row has a single cell or most rows another width."""
    if not parsed or len(parsed[0].cells) < 2:  # noqa: PLR2004 - one cell is no table
        return 0
    widths = Counter(len(record.cells) for record in parsed)
    return widths[len(parsed[0].cells)]


def header(parsed: list[Record], header_rows: int | None) -> Header:
    """The header of the records.

    Qualtrics writes three rows (name, question, a JSON object with ImportId), its older exports
    two, SurveyMonkey two (question, sub-label), and consultations often two (name, question). Every
    other file has one, unless `header_rows` says 0.
    """
    first = parsed[0].cells
    if header_rows == 0:
        names = ["text"] if len(first) == 1 else [f"column_{at}" for at, _ in enumerate(first, 1)]
        return Header(0, "plain", names, {})
    for at in (2, 1):
        if header_rows in (None, at + 1) and _is_qualtrics(parsed, at):
            columns = _unique(first)
            questions = parsed[1].cells if at > 1 else first
            return Header(at + 1, "qualtrics", columns, _by_column(columns, questions))
    if header_rows in (None, 2) and _is_surveymonkey(parsed):
        columns = _unique(_with_sub_labels(first, parsed[1].cells))
        return Header(2, "surveymonkey", columns, _by_column(columns, columns))
    columns = _unique(first)
    if header_rows in (None, 2):
        old = _has_qualtrics_names(parsed)
        if old or _has_questions_below_names(parsed):
            below = _by_column(columns, parsed[1].cells)
            return Header(2, "qualtrics" if old else "plain", columns, below)
    source = "google-forms" if columns[0].casefold() == _TIMESTAMP else "plain"
    asked = {column: column for column in columns if _is_question(column)}
    return Header(header_rows or 1, source, columns, asked)


def _has_qualtrics_names(parsed: list[Record]) -> bool:
    """Names in two rows without a third of ImportIds: older exports, and those to workbooks."""
    if len(parsed) == 1:
        return False
    rows = [[cell.strip().casefold() for cell in record.cells] for record in parsed[:2]]
    return not _QUALTRICS_PAIRS.isdisjoint(zip(*rows, strict=False))


def _has_questions_below_names(parsed: list[Record]) -> bool:
    """Short names in the first row, and in the second nearly only questions.

    An answer may be a question too, so there are to be several of them, or the names look like
    codes of questions.
    """
    if len(parsed) < 3 or len(parsed[0].cells) < 2:  # noqa: PLR2004 - names, questions and a row
        return False
    names = [name.strip() for name in parsed[0].cells]
    below = [cell.strip() for cell in parsed[1].cells if cell.strip()]
    asked = sum(cell.endswith("?") for cell in below)
    is_coded = all(
        _CODE.fullmatch(name)
        for name, cell in zip(names, parsed[1].cells, strict=False)
        if cell.strip().endswith("?")
    )
    return (
        all(len(name) <= SHORT_NAME and not name.endswith("?") for name in names)
        and len(below) >= (MOSTLY if is_coded else FEW_BLANKS) * len(names)
        and asked > MOSTLY * len(below)
        and (is_coded or asked > 1)
        and not any(cell.strip().endswith("?") for cell in parsed[2].cells)
    )


def _is_question(name: str) -> bool:
    return name.endswith("?") and len(name.split()) >= QUESTION_WORDS


def _is_qualtrics(parsed: list[Record], at: int) -> bool:
    return len(parsed) > at and any(map(_QUALTRICS_IMPORT.match, parsed[at].cells))


def _is_surveymonkey(parsed: list[Record]) -> bool:
    first = [cell.strip().casefold() for cell in parsed[0].cells]
    if _SURVEYMONKEY_ID not in first or len(parsed) == 1:
        return False
    at = first.index(_SURVEYMONKEY_ID)
    return at < len(parsed[1].cells) and not parsed[1].cells[at].strip()


def _with_sub_labels(questions: list[str], labels: list[str]) -> list[str]:
    """A question's name for each of its columns; only the first of them carries it in the file."""
    named = []
    current = ""
    for at, question in enumerate(questions):
        current = question.strip() or current
        label = labels[at].strip() if at < len(labels) else ""
        named.append(current if label.casefold() in _OPEN_ENDED else f"{current} [{label}]")
    return named


def _unique(names: list[str]) -> list[str]:
    """Column names without white space around or inside lines, blanks and doubles numbered."""
    seen: Counter[str] = Counter()
    unique = []
    for at, raw in enumerate(names, start=1):
        name = " ".join(raw.split()) or f"column_{at}"
        seen[name] += 1
        while seen[name] > 1:
            name = f"{name} ({seen[name]})"
            seen[name] += 1
        unique.append(name)
    return unique


def _by_column(columns: list[str], questions: list[str]) -> dict[str, str]:
    return {
        column: " ".join(question.split())
        for column, question in zip(columns, questions, strict=False)
        if question.strip()
    }
