"""The same calls through the openai SDK, where it is installed; its own retries are switched off.

For people who need what the SDK brings beside the protocol. It costs 0.8 CPU-s and 51 MiB per job.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import httpx2

from app.pipelines.llm import transport
from app.pipelines.llm.http_client import HTTPClient
from app.pipelines.llm.interface import LLMSettings, LLMUnavailableError
from app.pipelines.llm.retrying import FailedTryError, OversizedAnswerError
from app.pipelines.llm.transport import (
    CONNECT_SECONDS,
    Key,
    answer_of,
    may_be_charged,
    origin_of,
    told,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# The SDK refuses to start without a key, also for servers that need none.
_NO_KEY: Final = "none"
_OURS: Final = frozenset(
    {"accept", "connection", "content-length", "content-type", "host", "user-agent"}
)
_TOLD_OF_ITSELF: Final = "x-stainless-"


class SDKServer:
    """Posts chats through the SDK."""

    def __init__(self, settings: LLMSettings) -> None:
        self._key = Key(settings.api_key_env)
        self.origin = origin_of(settings.base_url)
        self._timeout_seconds = settings.timeout_seconds
        self._sdk = _new_sdk(settings, self._key)

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """See Poster."""
        import openai  # noqa: PLC0415  an extra

        del path
        try:
            async with asyncio.timeout(self._timeout_seconds):
                response = await self._sdk.chat.completions.with_raw_response.create(**body)
        except openai.APIStatusError as error:
            refused = error.response
        except (TimeoutError, openai.APITimeoutError) as error:
            raise FailedTryError(
                f"no answer from {self.origin} within {self._timeout_seconds:g} s",
                is_charged=may_be_charged(error.__cause__),
            ) from None
        except openai.APIConnectionError as error:
            if isinstance(error.__cause__, FailedTryError):
                raise error.__cause__ from None
            what = str(error.__cause__ or error)
            raise FailedTryError(
                told(f"no answer from {self.origin}: {what}", self._key),
                is_charged=may_be_charged(error.__cause__),
            ) from None
        else:
            refused = response.http_response
        content = await refused.aread()
        return answer_of(refused.status_code, refused.headers, content, self.origin, self._key)

    async def close(self) -> None:
        """See Poster."""
        await self._sdk.close()


class SDKClient(HTTPClient):
    """Makes calls through the SDK, with our retries."""

    def __init__(
        self, settings: LLMSettings, *, on_wait: Callable[[str], Awaitable[None]] | None = None
    ) -> None:
        super().__init__(settings, on_wait=on_wait, server=SDKServer(settings))


class _Plainly:
    """Takes from a request what the SDK adds to it from environment variables of its own.

    Those are for its maker's server (OPENAI_ORG_ID, OPENAI_CUSTOM_HEADERS, ...), and this one may
    be another. Compressed answers could grow without a bound while they are read.
    """

    def __init__(self, key: Key) -> None:
        self._key = key

    async def __call__(self, request: httpx2.Request) -> None:
        for name in list(request.headers):
            if name.lower() not in _OURS and not name.lower().startswith(_TOLD_OF_ITSELF):
                del request.headers[name]
        request.headers.update({"accept-encoding": "identity", **self._key.headers})


async def _bounded(response: httpx2.Response) -> None:
    """Read the answer as it comes, compressed or not, and no more of it than is allowed."""
    response.headers.pop("content-encoding", None)
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _BoundedStream(response.stream, origin_of(str(response.url)))


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, origin: str) -> None:
        self._stream = stream
        self._origin = origin

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = transport.MAX_RESPONSE_BYTES
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise OversizedAnswerError(self._origin, transport.MAX_RESPONSE_BYTES)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _new_sdk(settings: LLMSettings, key: Key) -> "AsyncOpenAI":
    try:
        from openai import AsyncOpenAI  # noqa: PLC0415  an extra
    except ImportError:
        raise LLMUnavailableError(
            "the openai SDK is not installed: pip install 'haulage[llm]', or leave out llm.client",
            is_final=True,
        ) from None
    return AsyncOpenAI(
        base_url=settings.base_url,
        api_key=key.reveal() or _NO_KEY,
        max_retries=0,
        timeout=settings.timeout_seconds,
        http_client=httpx2.AsyncClient(
            event_hooks={"request": [_Plainly(key)], "response": [_bounded]},
            # The SDK's own client follows redirects.
            follow_redirects=False,
            timeout=httpx2.Timeout(None, connect=min(CONNECT_SECONDS, settings.timeout_seconds)),
            limits=httpx2.Limits(max_connections=None),
        ),
    )
