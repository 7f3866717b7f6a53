"""How single values of settings are written; each raises ValueError with the remedy."""

import json
import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator


def parse_pipelines(value: Any) -> Any:
    """name=module:Class pairs, or JSON with a target, or with target and arguments, by name."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from None
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if any("=" not in entry for entry in entries):
        raise ValueError("write name=package.module:Class, several divided by commas, or JSON")
    return {name.strip(): target.strip() for name, target in (e.split("=", 1) for e in entries)}


def parse_list(value: Any) -> Any:
    """Entries divided by commas."""
    if not isinstance(value, str):
        return value
    return [entry.strip() for entry in value.split(",") if entry.strip()]


def checked_address(value: str) -> str:
    """The base URL of a server, plainly written; ValueError otherwise."""
    try:
        parts = urlsplit(value)
        is_plain = parts.port != 0 and not re.search(r"[?#%@;\\\s]", value)
    except ValueError:
        is_plain = False
    if not is_plain or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("write it as https://host:port/v1; a key never stands in it")
    return value


def checked_origin(value: str) -> str:
    """The origin of a web page; ValueError otherwise."""
    parts = urlsplit(checked_address(value))
    is_default = parts.port == {"http": 80, "https": 443}[parts.scheme]
    if parts.path or value != value.lower() or is_default:
        raise ValueError(
            "write it as a browser does: https://app.example, without a path or a default port"
        )
    return value


def checked_host(value: str) -> str:
    """A name as it stands in `Host`, without its port; ValueError where it can never match."""
    host = value.lower()
    try:
        is_name = urlsplit(f"//{host}").hostname == host.strip("[]")
    except ValueError:
        is_name = False
    if not is_name or host.endswith(".") or not host.isascii() or ":" in host.partition("]")[2]:
        raise ValueError("write the name alone: app.example, without scheme, port and final dot")
    return host.strip("[]")


Address = Annotated[str, AfterValidator(checked_address)]
Host = Annotated[str, AfterValidator(checked_host)]
Origin = Annotated[str, AfterValidator(checked_origin)]
