"""Reading bodies: bounded while they arrive, and parsed off the event loop when they are large."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app.api.problems import Problem, on_unexpected
from app.domain.errors import HaulageError
from app.domain.jobs import MAX_PAYLOAD_BYTES
from app.domain.json_values import TOO_DEEP, TOO_LONG_INTEGER

# A payload at its limit still fits with the other fields around it.
MAX_BODY_BYTES: Final = MAX_PAYLOAD_BYTES + 256 * 1024
# Below this, parsing takes under a millisecond and a thread would cost more.
OFF_LOOP_BYTES: Final = 64 * 1024
# Models have less than thirty.
MAX_FIELDS: Final = 100


class BoundedRequest(Request):
    """A request whose body is refused as soon as it grows too large."""

    async def body(self) -> bytes:
        """The whole body; 413 as a problem above MAX_BODY_BYTES, before reading it all."""
        return await self.read(MAX_BODY_BYTES)

    async def read(self, limit_bytes: int) -> bytes:
        """As `body` with a limit of its own."""
        if not hasattr(self, "_body"):
            declared = self.headers.get("content-length", "")
            if declared.isdecimal() and int(declared) > limit_bytes:
                raise _too_large(limit_bytes)
            chunks = bytearray()
            async for chunk in self.stream():
                chunks += chunk
                if len(chunks) > limit_bytes:
                    raise _too_large(limit_bytes)
            self._body = bytes(chunks)
        return self._body

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
    """A route that reads its request as a BoundedRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own handler behind a bounded request."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            if self.body_field is not None and not (_is_json(request) or self._may_lack(request)):
                raise Problem(
                    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                    "not-json",
                    "send JSON with the header content-type: application/json",
                )
            try:
                return await handle(BoundedRequest(request.scope, request.receive))
            except (HTTPException, RequestValidationError, HaulageError):
                raise
            except ClientDisconnect:
                # In the middle of its body: nobody reads this.
                return Response(status_code=HTTPStatus.BAD_REQUEST)
            except Exception as error:  # noqa: BLE001  answered here, the connection stays usable
                return await on_unexpected(request, error)

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
