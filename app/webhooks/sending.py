"""One try: a signed POST to an endpoint, bounded in time, to an address that was looked at.

No redirects, no proxies and no credentials of the environment; of the answer only its status is
read.
"""

import asyncio
import contextlib
import functools
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2

from app import __version__
from app.domain.masking import mask_secrets
from app.domain.webhooks import BUSY_CODES, Answer, DueDelivery, signatures
from app.webhooks.addresses import AddressRules, BlockedAddressError

TRY_SECONDS: Final = 15.0
_MAX_ERROR_CHARACTERS: Final = 300

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, in the order of the system's preference; OSError.

    In a thread of its own: a name server that is silent for half a minute must neither take the
    threads that large bodies are read in, nor hold the end of the process.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def look() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = [str(address[0]) for *_, address in found]
            tell = functools.partial(_unless_done, answer.set_result, answer, addresses)
        except (OSError, UnicodeError) as error:
            reason = OSError(f"no address of this name: {error}")
            tell = functools.partial(_unless_done, answer.set_exception, answer, reason)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=look, name="haulage-resolve", daemon=True).start()
    return await answer


def _unless_done(
    tell: Callable[[Any], None], answer: "asyncio.Future[list[str]]", what: Any
) -> None:
    if not answer.done():  # nobody waits any more
        tell(what)


class PinnedTransport(httpx2.AsyncBaseTransport):
    """Connects to an address that the rules allow; TLS and `Host` keep the name.

    Every request has a connection of its own: one that is kept was opened for another name.
    """

    def __init__(
        self,
        rules: AddressRules,
        *,
        resolving: Resolve = resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._rules = rules
        self._resolve = resolving
        self._transport = httpx2.AsyncHTTPTransport(
            verify=tls or True,
            trust_env=False,
            limits=httpx2.Limits(max_keepalive_connections=0),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """See httpx2; BlockedAddressError."""
        url = request.url
        # As it is sent in `Host`. `url.host` is the decoded name, which the resolver would encode
        # by other rules, into somebody else's.
        host = url.raw_host.decode()
        default_port = 443 if url.scheme == "https" else 80
        address = self._rules.choose(host, await self._resolve(host, url.port or default_port))
        return await self._transport.handle_async_request(
            httpx2.Request(
                request.method,
                url.copy_with(host=address),
                headers=request.headers,  # `Host` among them
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
        )

    async def aclose(self) -> None:
        """See httpx2."""
        await self._transport.aclose()


class HTTPSender:
    """Makes tries; several may be under way at once."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._client = httpx2.AsyncClient(
            transport=transport,
            trust_env=False,
            follow_redirects=False,
            timeout=TRY_SECONDS,
            headers={"user-agent": f"haulage/{__version__}", "accept-encoding": "identity"},
        )

    async def send(self, delivery: DueDelivery) -> Answer:
        """What the endpoint says, or why it does not."""
        body = delivery.body
        timestamp = int(time.time())
        headers = {
            "content-type": "application/json",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signatures(delivery.secrets, delivery.id, timestamp, body),
        }
        try:
            async with (
                asyncio.timeout(TRY_SECONDS),
                self._client.stream(
                    "POST", delivery.url, content=body, headers=headers
                ) as response,
            ):
                code = response.status_code
                asked = response.headers.get("retry-after") if code in BUSY_CODES else None
                return Answer(code, retry_after_seconds=_retry_after_seconds(asked))
        except TimeoutError:
            return Answer(error=f"no answer within {TRY_SECONDS:.0f} s")
        except (httpx2.HTTPError, httpx2.InvalidURL, BlockedAddressError, OSError) as error:
            said = f"{type(error).__name__}: {error}"
            return Answer(error=mask_secrets(said)[:_MAX_ERROR_CHARACTERS])

    async def close(self) -> None:
        """Give up what is under way."""
        await self._client.aclose()


def _retry_after_seconds(text: str | None) -> float | None:
    """Seconds, or the time until a date; None where it says neither."""
    if text is None:
        return None
    if text.isdecimal():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # a year of thirty digits
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
