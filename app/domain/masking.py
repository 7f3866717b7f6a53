"""Secrets in texts that people read: log lines and what errors say."""

import re
from typing import Final

# Each leaves what tells a reader which secret it was, never a part of the secret.
_SECRETS: Final = (
    # Credentials in a header.
    (re.compile(r"(?i)\b(bearer|basic)(\s+|%20)[A-Za-z0-9._~+/=-]{6,}"), r"\1 ***"),
    # Keys of ours, and secrets of webhooks.
    (re.compile(r"\b(hlg|whsec)_[A-Za-z0-9_+/=-]{8,}"), r"\1_***"),
    # The password in a URL; one with an @ in it ends at the last.
    (re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s:/?#@'\"]*):[^\s/'\"]+@"), r"\1:***@"),
    # Options of a URL, of a connection string or of a call.
    (
        re.compile(
            # One in quotes goes to the closing one, whatever is in it.
            r"(?i)(password|passwd|pwd|secret|token|api[_-]?key)(['\"]?\s*[=:]\s*)"
            r"(?:(['\"])(?:\\.|(?!\3)[^\\\n])*+|[^\s&'\",)]+)"
        ),
        r"\1\2\3***",
    ),
    # Keys of LLM services.
    (re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), "sk-***"),
)


def mask_secrets(text: str) -> str:
    """The text with *** for every secret that is known by its form."""
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text
