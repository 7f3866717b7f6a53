"""Reading bodies: bounded while they arrive, and parsed off the event loop when they are large."""

import asyncio
import errno
import json
import logging
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from app.api.problems import RETRY_AFTER_SECONDS, Problem, on_unexpected
from app.api.receiving import in_time
from app.api.room import Room
from app.domain.errors import HaulageError
from app.domain.jobs import MAX_PAYLOAD_BYTES
from app.domain.json_values import TOO_DEEP, TOO_LONG_INTEGER

# A payload at its limit still fits with the other fields around it.
MAX_BODY_BYTES: Final = MAX_PAYLOAD_BYTES + 256 * 1024
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_logger: Final = logging.getLogger("haulage.api")
# Below this, parsing takes under a millisecond and a thread would cost more.
OFF_LOOP_BYTES: Final = 64 * 1024
# One of a header: a name without `*` and `%`, and a value, which may be quoted. It never goes back.
_PARAMETER: Final = re.compile(
    r"[ \t]*+(?:([A-Za-z0-9!#$&+.^_`|~-]++)="
    r'(?:"(?:[^"\\\x00-\x1f\x7f]|\\[\x20-\x7e])*+"|[^\s";\x00-\x1f\x7f]*+)'
    r"[ \t]*+)?+(?:;|\Z)"
)
# Models have less than thirty.
MAX_FIELDS: Final = 100


class BoundedRequest(Request):
    """A request whose body is refused as soon as it grows too large or comes too slowly.

    Args:
        room: what its body is held in until `let_go`.
    """

    def __init__(self, scope: Scope, receive: Receive, room: Room) -> None:
        super().__init__(scope, receive)
        self._room = room
        self._held_bytes = 0

    async def body(self) -> bytes:
        """The whole body; 413 as a problem above MAX_BODY_BYTES, before reading it all."""
        return await self.read(MAX_BODY_BYTES)

    async def read(self, limit_bytes: int) -> bytes:
        """As `body` with a limit of its own; 408 and 503 as `receiving` has them."""
        if not hasattr(self, "_body"):
            declared = self.headers.get("content-length", "")
            if declared.isdecimal() and int(declared) > limit_bytes:
                raise _too_large(limit_bytes)
            chunks = bytearray()
            async with aclosing(in_time(self.stream())) as stream:
                async for chunk in stream:
                    if len(chunks) + len(chunk) > limit_bytes:
                        raise _too_large(limit_bytes)
                    self._room.take(len(chunk))
                    self._held_bytes += len(chunk)
                    chunks += chunk
            self._body = bytes(chunks)
        return self._body

    def let_go(self) -> None:
        """The request is answered: others may have its room."""
        self._room.give_back(self._held_bytes)
        self._held_bytes = 0

    async def json(self) -> Any:
        """The body as JSON."""
        body = await self.body()
        with unparsable():
            if len(body) < OFF_LOOP_BYTES:
                value = json.loads(body)
            else:
                value = await asyncio.to_thread(json.loads, body)
        check_fields(value)
        return value


class BoundedRoute(APIRoute):
    """A route that asks what the request may, and reads it as a BoundedRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own handler behind a bounded request."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            # Here, where it is certain which route it is, and before the body is read.
            if (permit := request.state.permit) is not None:
                await permit.check(request, self.path)
            if self.body_field is not None and not (_is_json(request) or self._may_lack(request)):
                raise Problem(
                    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                    "not-json",
                    "send JSON with the header content-type: application/json",
                )
            bounded = BoundedRequest(request.scope, request.receive, request.app.state.body_room)
            try:
                return await handle(bounded)
            except (HTTPException, RequestValidationError, HaulageError):
                raise
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    return await on_unexpected(request, error)
                _logger.error("no room on disk for %s: %s", request.url.path, error)  # noqa: TRY400
                raise Problem(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "no-space",
                    "there is no room on the disk for temporary files",
                    headers={"Retry-After": str(RETRY_AFTER_SECONDS), "Connection": "close"},
                ) from None
            except ClientDisconnect:
                # In the middle of its body: nobody reads this.
                return Response(status_code=HTTPStatus.BAD_REQUEST)
            except Exception as error:  # noqa: BLE001  answered here, the connection stays usable
                return await on_unexpected(request, error)
            finally:
                bounded.let_go()

        return handle_bounded

    def _may_lack(self, request: Request) -> bool:
        """Whether there is no body, and need not be one."""
        has_body = request.headers.get("content-length", "0") != "0" or (
            "transfer-encoding" in request.headers
        )
        return (
            not has_body
            and self.body_field is not None
            and not (self.body_field.field_info.is_required())
        )


def check_fields(value: Any, place: str = "") -> None:
    """Refuse an object with more fields than any request has: each would be an error of its own.

    Half a million of them took 4 s on the event loop and 32 MB to tell.
    """
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        reason = f"{len(value)} fields; no more than {MAX_FIELDS} are looked at"
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid-input",
            f"{place or '/'}: {reason}",
            errors=[(place, reason)],
        )


@contextmanager
def unparsable(place: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Tell as problems why JSON could not be parsed.

    Args:
        place: pointer to what was parsed, where that is not the whole body.
    """
    try:
        yield
    except RecursionError:
        raise _unstorable(place(), TOO_DEEP) from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at character {error.pos}"
        raise _not_json(place(), reason) from None
    except UnicodeDecodeError as error:
        raise _not_json(place(), str(error)) from None
    except ValueError:  # Python's own bound on the digits of an integer
        raise _unstorable(place(), TOO_LONG_INTEGER) from None


def media_type(request: Request) -> str:
    """The content type without its parameters, "" where there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def form_type(request: Request) -> str:
    """The header `Content-Type` of a form, whose parameters can only be read in one way.

    RFC 2231 is no part of RFC 7578: continued, encoded or repeated parameters mean one boundary to
    one reader and another to the next, and make the library's own raise whatever comes to its mind.

    Raises:
        Problem: 415 for another type, 400 for other parameters than `name=value`, each once.
    """
    text = request.headers.get("content-type", "")
    if media_type(request) != "multipart/form-data":
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "no-form",
            "send a form with the header content-type: multipart/form-data",
        )
    names: set[str] = set()
    at = text.find(";") + 1 or len(text)
    while at < len(text):
        found = _PARAMETER.match(text, at)
        if found is None or (found[1] or "").lower() in names:
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                "bad-form",
                "the header content-type states no usable boundary",
            )
        if found[1]:
            names.add(found[1].lower())
        at = found.end()
    return text


def _is_json(request: Request) -> bool:
    kind, _, subtype = media_type(request).partition("/")
    return kind == "application" and (subtype == "json" or subtype.endswith("+json"))


def _not_json(pointer: str, reason: str) -> Problem:
    what = f"row {pointer[1:]}" if pointer else "the body"
    return Problem(
        HTTPStatus.BAD_REQUEST,
        "bad-json",
        f"{what} is not JSON: {reason}",
        errors=[(pointer, reason)] if pointer else [],
    )


def _unstorable(pointer: str, reason: str) -> Problem:
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY, "unstorable-json", reason, errors=[(pointer, reason)]
    )


def _too_large(limit_bytes: int) -> Problem:
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "too-large",
        f"the body exceeds {limit_bytes} bytes",
        headers={"Connection": "close"},
    )
