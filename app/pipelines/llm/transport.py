"""One POST to a server of the OpenAI protocol: bounded in time and size, its key never shown.

Redirects are not followed: the key and the answers go to the server that was named and to no other.
"""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import httpx2

from app.pipelines.llm.interface import LLMUnavailableError
from app.pipelines.llm.retrying import (
    FailedTryError,
    OversizedAnswerError,
    asked_wait_seconds,
    is_worth_another_try,
)

MAX_RESPONSE_BYTES: Final = 32 * 1024 * 1024
CONNECT_SECONDS: Final = 10.0
_MAX_WORDS: Final = 300
_HIDDEN: Final = "[key]"
# Shorter ones are placeholders for local servers ("none", "test"), and words of ordinary answers.
_SECRET_CHARACTERS: Final = 8
# Money does not come back by waiting.
_QUOTA_CODES: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_OK: Final = 200
_BAD_GATEWAY: Final = 502
_REDIRECT: Final = range(300, 400)
_STATUSES: Final = range(100, 600)
# Time was up somewhere behind the server that answers so: the work may have been done.
_TIMED_OUT: Final = frozenset({408, 504, 524})
# Before a connection is there nothing was sent.
_UNSENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


class Key:
    """An API key that shows itself in one header only."""

    def __init__(self, environment_variable: str | None) -> None:
        self._secret = ""
        self._written: re.Pattern[str] | None = None
        if environment_variable is None:
            return
        self._secret = os.environ.get(environment_variable, "").strip()
        if not self._secret:
            raise LLMUnavailableError(
                f"the environment variable {environment_variable} for the LLM's key is not set",
                is_final=True,
            )
        if not re.fullmatch(r"[\x21-\x7e]+", self._secret):
            raise LLMUnavailableError(
                f"the environment variable {environment_variable} holds no usable key",
                is_final=True,
            )
        if len(self._secret) >= _SECRET_CHARACTERS:
            # Each sign plain or as JSON may write it, also within JSON within JSON.
            signs = (rf"\\{{0,8}}(?:{re.escape(c)}|(?i:u{ord(c):04x}))" for c in self._secret)
            self._written = re.compile("".join(signs))

    def __repr__(self) -> str:
        return _HIDDEN

    @property
    def headers(self) -> dict[str, str]:
        """The header that it is sent in."""
        return {"authorization": f"Bearer {self._secret}"} if self._secret else {}

    def reveal(self) -> str:
        """The key itself, for a library that wants it in clear; "" without one."""
        return self._secret

    def hidden_in(self, text: str) -> str:
        """`text` without the key: servers like to repeat it in their errors."""
        return text.replace(self._secret, _HIDDEN) if self._secret else text

    def hidden_within(self, answer: Any, content: bytes) -> Any:
        """A server's answer without the key, wherever in it: answers are kept and shown.

        Args:
            content: the same as it came.
        """
        # Most have neither the key nor an escape in which it could hide, and vectors are long.
        if self._written is None or not (self._secret.encode() in content or b"\\" in content):
            return answer
        return _replaced(answer, self._written)


def _replaced(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(_HIDDEN, value)
    if isinstance(value, list):
        return [_replaced(item, pattern) for item in value]
    if isinstance(value, dict):
        return {name: _replaced(item, pattern) for name, item in value.items()}
    return value


class Poster(Protocol):
    """Posts JSON to a server, once."""

    origin: str

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object that the server answers with; raises FailedTryError."""

    async def close(self) -> None:
        """Close the connections."""


class Server:
    """An OpenAI-compatible server.

    Args:
        timeout_seconds: for one POST, from the connection to the last byte, so that a server
            that sends a byte a minute does not hold the job.
    """

    def __init__(self, base_url: str, key: Key, timeout_seconds: float) -> None:
        self._base_url = base_url.rstrip("/")
        self._key = key
        self._timeout_seconds = timeout_seconds
        self.origin = origin_of(base_url)
        self._http = httpx2.AsyncClient(
            # Compressed answers could grow without a bound while they are read.
            headers={"accept-encoding": "identity", **key.headers},
            timeout=httpx2.Timeout(None, connect=min(CONNECT_SECONDS, timeout_seconds)),
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=30),
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"Server({self.origin})"

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object that the server answers `body` with.

        Raises:
            FailedTryError: without the key, and final where another try is of no use.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds):
                status, headers, content = await self._exchange(path, body)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise FailedTryError(
                f"no answer from {self.origin} within {self._timeout_seconds:g} s",
                is_charged=may_be_charged(error),
            ) from None
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.LocalProtocolError) as error:
            raise FailedTryError(
                told(f"{self.origin}: {error}", self._key), is_final=True
            ) from None
        except httpx2.TransportError as error:
            what = str(error) or type(error).__name__
            raise FailedTryError(
                told(f"no answer from {self.origin}: {what}", self._key),
                is_charged=may_be_charged(error),
            ) from None
        return answer_of(status, headers, content, self.origin, self._key)

    async def _exchange(
        self, path: str, body: Mapping[str, Any]
    ) -> tuple[int, Mapping[str, str], bytes]:
        url = f"{self._base_url}{path}"
        async with self._http.stream("POST", url, json=body) as response:
            chunks: list[bytes] = []
            left = MAX_RESPONSE_BYTES
            async for chunk in response.aiter_raw():
                left -= len(chunk)
                if left < 0:
                    raise OversizedAnswerError(self.origin, MAX_RESPONSE_BYTES)
                chunks.append(chunk)
            return response.status_code, response.headers, b"".join(chunks)


def origin_of(url: str) -> str:
    """Scheme, host and port, without the user name and password that an address may hold too."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


def may_be_charged(error: BaseException | None) -> bool:
    """Whether the server may have got the request that ended in `error`."""
    return not isinstance(error, _UNSENT)


def answer_of(
    status: int, headers: Mapping[str, str], content: bytes, origin: str, key: Key
) -> dict[str, Any]:
    """The JSON object in a response.

    Raises:
        FailedTryError: it is none, or an error.
    """
    answer = _parsed(content, key)
    error = _error_of(answer)
    if status == _OK and isinstance(answer, dict) and not error:
        return answer
    code = error.get("code")
    # An answer was made, and did not come whole.
    is_unreadable = status == _OK and not error
    if status == _OK:
        # Some gateways put the real status into the body; a proxy's page has none at all.
        status = code if type(code) is int and code in _STATUSES else _BAD_GATEWAY
    is_out_of_money = isinstance(code, str) and code in _QUOTA_CODES
    words = str(error.get("message") or "")
    if status in _REDIRECT:
        words = "it redirects elsewhere, which is not followed"
    raise FailedTryError(
        told(f"{origin} answered {status}" + (f": {words}" if words else ""), key),
        status,
        is_final=not is_worth_another_try(status) or is_out_of_money,
        is_charged=is_unreadable or status in _TIMED_OUT,
        wait_seconds=asked_wait_seconds(headers),
    )


def told(words: str, key: Key) -> str:
    """One short line without the key."""
    return " ".join(key.hidden_in(words).split())[:_MAX_WORDS]


def _parsed(content: bytes, key: Key) -> Any:
    try:
        # Lone surrogates in escaped form are read as they are and cleaned by whoever keeps them.
        return key.hidden_within(json.loads(content.decode("utf-8", "replace")), content)
    except (ValueError, RecursionError):
        return None


def _error_of(answer: Any) -> dict[str, Any]:
    """The protocol's error object, also where a server sends a bare text."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) else {}
