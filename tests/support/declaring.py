"""A pipeline of somebody else that says what it takes; it imports nothing from Haulage."""

from collections.abc import Mapping
from typing import Any, ClassVar


class Declared:
    """Says what it takes."""

    payload_model: ClassVar = {"type": "object", "required": ["n"]}
    job_defaults: ClassVar = {"max_attempts": 2}

    async def run(self, payload: Mapping[str, Any], context: Any) -> Any:
        return payload["n"]
