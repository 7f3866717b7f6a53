"""The same calls through the openai SDK, where it is installed; its own retries are switched off.

For people who need what the SDK brings beside the protocol. It costs 0.8 CPU-s and 51 MiB per job.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import httpx2

from app.pipelines.llm.http_client import HTTPClient
from app.pipelines.llm.interface import LLMSettings, LLMUnavailableError
from app.pipelines.llm.retrying import FailedTryError
from app.pipelines.llm.transport import CONNECT_SECONDS, Key, answer_of, origin_of, told

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# The SDK refuses to start without a key, also for servers that need none.
_NO_KEY: Final = "none"


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
        except (TimeoutError, openai.APITimeoutError):
            raise FailedTryError(
                f"no answer from {self.origin} within {self._timeout_seconds:g} s"
            ) from None
        except openai.APIConnectionError as error:
            what = str(error.__cause__ or error)
            raise FailedTryError(told(f"no answer from {self.origin}: {what}", self._key)) from None
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
            # The SDK's own client follows redirects.
            follow_redirects=False,
            timeout=httpx2.Timeout(None, connect=min(CONNECT_SECONDS, settings.timeout_seconds)),
            limits=httpx2.Limits(max_connections=None),
        ),
    )
