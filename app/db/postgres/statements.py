"""The named statements of queries/*.sql, read once at import; no SQL text lives in Python."""

import re
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Final

_HEADER: Final = re.compile(r"^-- name: (?P<name>\w+)\n-- (?P<purpose>.+)\n", re.MULTILINE)
_FILES: Final = (
    "submit.sql",
    "claim.sql",
    "holder.sql",
    "calls.sql",
    "datasets.sql",
    "control.sql",
    "nodes.sql",
    "reads.sql",
    "keys.sql",
    "webhooks.sql",
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement."""

    name: str
    purpose: str
    sql: str


def _read(file_name: str) -> list[Statement]:
    text = (files("app.db.postgres") / "queries" / file_name).read_text("utf-8")
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    return [
        Statement(header["name"], header["purpose"], text[header.end() : end].strip().rstrip(";"))
        for header, end in zip(headers, ends, strict=True)
    ]


STATEMENTS: Final = MappingProxyType(
    {statement.name: statement for name in _FILES for statement in _read(name)}
)
