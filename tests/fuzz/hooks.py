"""What schemathesis has to be told of: how JSON lines are written."""

import json
from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson", "application/jsonl")
def json_lines(_context: Any, value: Any) -> bytes:
    """A list as one value a line; anything else as it is."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    rows = value if isinstance(value, list) else [value]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()
