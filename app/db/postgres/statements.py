"""The named statements of queries/*.sql, read once at import; no SQL text lives in Python."""

import re
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Final

_FOLDER: Final = files("app.db.postgres") / "queries"
_HEADER: Final = re.compile(r"^-- name: (?P<name>\w+)\n-- (?P<purpose>.+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement."""

    name: str
    purpose: str
    sql: str


def parse(text: str) -> list[Statement]:
    """The statements of one file's text."""
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    return [
        Statement(header["name"], header["purpose"], text[header.end() : end].strip().rstrip(";"))
        for header, end in zip(headers, ends, strict=True)
    ]


STATEMENTS: Final = MappingProxyType(
    {
        statement.name: statement
        for file in sorted(_FOLDER.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".sql")
        for statement in parse(file.read_text("utf-8"))
    }
)
