"""Secrets in texts that people read: log lines and what errors say.

Known by their form (`mask_secrets`), and in a worker by their value too (`Mask`).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

# Each leaves what tells a reader which secret it was, never a part of the secret.
_SECRETS: Final = (
    # Credentials in a header.
    (re.compile(r"(?i)\b(bearer|basic)(\s+|%20)[A-Za-z0-9._~+/=-]{6,}"), r"\1 ***"),
    # Keys of ours, and secrets of webhooks.
    (re.compile(r"\b(hlg|whsec)_[A-Za-z0-9_+/=-]{8,}"), r"\1_***"),
    # The password in a URL; one with an @ in it ends at the last. Schemes are short: without a
    # bound every word of a long text would be read to its end.
    (re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s:/?#@'\"]*):[^\s/'\"]+@"), r"\1:***@"),
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
# Where none of these is, none of the above is: most lines are done with after 1 us.
_MARKS: Final = (
    "bearer",
    "basic",
    "hlg_",
    "whsec_",
    "://",
    "sk-",
    "passw",
    "pwd",
    "secret",
    "token",
    "api",
)
# Names of environment variables whose values are secrets.
_SECRET_NAME: Final = re.compile(
    r"(?i)(?:(?:^|_)key|apikey|token|secret|passwd|password|passphrase|credentials)$"
)
# Where the arguments of a pipeline name one, as `api_key_env` does.
_NAMED: Final = re.compile(r'_env"\s*:\s*"([A-Za-z_][A-Za-z0-9_]*)"')
# Shorter ones are words of every text.
_LEAST_CHARACTERS: Final = 8


def mask_secrets(text: str) -> str:
    """The text with *** for every secret that is known by its form."""
    lowered = text.lower()
    if not any(mark in lowered for mark in _MARKS):
        return text
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text


class Mask:
    """Masks what is known by its form, and these values wherever they stand."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        kept = {value for value in values if len(value) >= _LEAST_CHARACTERS}
        # The longest first: one may be the beginning of another.
        self._values = sorted(kept, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text with *** for every secret."""
        for value in self._values:
            text = text.replace(value, "***")
        return mask_secrets(text)


def secret_values(environment: Mapping[str, str], arguments: str = "") -> list[str]:
    """What an environment keeps under the name of a secret, or of what `arguments` name.

    Args:
        arguments: of a pipeline, JSON; a variable is named under `..._env`.
    """
    named = set(_NAMED.findall(arguments))
    return [
        value.strip()
        for name, value in environment.items()
        if name in named or _SECRET_NAME.search(name)
    ]
