"""Who may do what: the first thing that happens to a request, before its body is read.

bounds of its head --> key --> routing --> scope of the route that was found
                        |
                        '-- none needed: Host and Origin must be of this machine, since every web
                            page in a browser here could send requests to a loopback address

A key is needed once one was made (also if all were revoked since), where the settings say so, and
for every connection that comes in by another than a loopback address, unless the settings open it
to anybody.
"""

import ipaddress
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.problems import RETRY_AFTER_SECONDS, Problem, answer
from app.api.security_keys import KeyRing
from app.api.security_scopes import HEALTH, READING, owned_by_submitter, route_path, scope_of
from app.db.contracts.keys import KeyStore
from app.domain import keys
from app.domain.errors import DatabaseUnavailableError
from app.domain.keys import ApiKey
from app.telemetry import MAY_REPEAT

MAX_URL_BYTES: Final = 8 * 1024
MAX_HEADERS: Final = 100
MAX_HEADER_BYTES: Final = 16 * 1024
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_REALM: Final = 'Bearer realm="haulage"'

_logger: Final = logging.getLogger("haulage.api")


@dataclass(frozen=True, slots=True)
class Access:
    """What the settings say about who may do what.

    Attributes:
        needs_key: always, also on loopback and without any key stored.
        is_open: to everybody who reaches the address, as long as no key was ever made.
        admin_key: a key that allows everything without being stored.
        allowed_hosts: names in `Host` of requests without a key; None for those of loopback, and
            then only where they come in by it.
        cors_origins: web origins whose pages may read answers.
        max_pending_jobs: of one key that has no cap of its own, likewise `max_pending_bytes`.
        max_datasets: stored, of one key.
    """

    needs_key: bool = False
    is_open: bool = False
    admin_key: str | None = None
    allowed_hosts: frozenset[str] | None = None
    cors_origins: tuple[str, ...] = ()
    max_pending_jobs: int = 10_000
    max_pending_bytes: int = 1024**3
    max_datasets: int = 200


class Guard:
    """ASGI middleware: what it lets through has a submitter in its state, "" for nobody known."""

    def __init__(self, app: ASGIApp, db: KeyStore, ring: KeyRing, access: Access) -> None:
        self._app = app
        self._db = db
        self._ring = ring
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http":
            try:
                await self._admit(scope)
            except Problem as problem:
                await answer(Request(scope), problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        _check_head(scope)
        state = scope.setdefault("state", {})
        state["submitter"] = ""
        state["permit"] = None
        path = route_path(scope["path"], scope.get("root_path", ""))
        if path in HEALTH:
            return
        try:
            key = await self._authenticate(scope)
            if key is None:
                _check_origin(scope, self._access)
                return
        except DatabaseUnavailableError as error:
            _logger.warning("cannot look a key up: %s", error, extra=MAY_REPEAT)
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "database-unavailable",
                "the database cannot be reached; nothing can be said about this request",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            ) from None
        state["submitter"] = key.id
        state["api_key"] = key
        state["permit"] = Permit(self._db, key)

    async def _authenticate(self, scope: Scope) -> ApiKey | None:
        """The key of the request; None where it has none and needs none."""
        given = _headers(scope, b"authorization")
        kind, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        text = text.strip()
        is_bearer = kind.lower() == "bearer"
        if is_bearer and (key := await self._ring.find(text)) is not None:
            return key
        if is_bearer and text.startswith(keys.KEY_PREFIX):
            raise _unauthorized("no such key, or it was revoked", given=True)
        # Another word than ours may be meant for a proxy before us.
        if await self._needs_key(scope):
            raise _unauthorized(
                "send Authorization: Bearer hlg_..., a key of `haulage keys create`",
                given=bool(given),
            )
        return None

    async def _needs_key(self, scope: Scope) -> bool:
        access = self._access
        if access.needs_key or not (access.is_open or is_loopback(scope)):
            return True
        return await self._ring.has_keys()


@dataclass(frozen=True, slots=True)
class Permit:
    """What the key of a request allows, asked once the router has found a route."""

    db: KeyStore
    key: ApiKey

    async def check(self, request: Request, template: str) -> None:
        """Refuse what the key does not allow on the route `template`; Problem 403."""
        needed = scope_of(request.method, template)
        if not self.key.allows(needed):
            raise _forbidden(needed, f"this needs a key with the scope {needed}")
        owned = owned_by_submitter(request.method, template)
        if owned is None or self.key.allows(keys.Scope.ADMIN):
            return
        if owned == "job":
            submitter = await self.db.get_submitter(request.path_params["job_id"])
        else:
            submitter = await self.db.get_dataset_submitter(request.path_params["dataset_id"])
        if submitter not in {None, self.key.id}:
            raise _forbidden(keys.Scope.ADMIN, f"the {owned} was submitted by somebody else")


def is_loopback(scope: Scope) -> bool:
    """Whether the connection came in by a loopback address, a socket file or in this process."""
    server = scope.get("server")
    try:
        return ipaddress.ip_address(server[0]).is_loopback if server else True
    except ValueError:  # no address: nothing that a network leads to
        return True


def _check_head(scope: Scope) -> None:
    if _CONTROL.search(scope["path"]):
        # No route has any; patterns, logs and terminals take them for what they are not.
        raise Problem(HTTPStatus.BAD_REQUEST, "bad-path", "the path has control characters")
    target = scope.get("raw_path") or scope["path"].encode()
    if len(target) + len(scope["query_string"]) > MAX_URL_BYTES:
        raise Problem(
            HTTPStatus.REQUEST_URI_TOO_LONG,
            "too-long-url",
            f"path and query exceed {MAX_URL_BYTES} bytes",
        )
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS or _size(headers) > MAX_HEADER_BYTES:
        raise Problem(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            "too-large-headers",
            f"more than {MAX_HEADERS} headers or {MAX_HEADER_BYTES} bytes of them",
        )


def _size(headers: Iterable[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) for name, value in headers)


def _check_origin(scope: Scope, access: Access) -> None:
    """Refuse what a web page of somebody else may have made a browser here send."""
    given = _headers(scope, b"host")
    host = given[0].lower() if len(given) == 1 else ""
    allowed = access.allowed_hosts
    if allowed is None and not access.is_open and _is_by_loopback_address(scope):
        allowed = _LOOPBACK_NAMES
    if allowed is not None and _name(host) not in allowed | _LOOPBACK_NAMES:
        # A name that an attacker's server has just let point to this machine (DNS rebinding).
        raise Problem(
            HTTPStatus.MISDIRECTED_REQUEST,
            "wrong-host",
            "without a key only requests to localhost are answered; name other hosts in "
            "HAULAGE_ALLOWED_HOSTS, or use a key",
        )
    if scope["method"] in READING or "same-origin" in _headers(scope, b"sec-fetch-site"):
        return
    for origin in _headers(scope, b"origin"):
        # Browsers leave default ports out of both.
        if origin not in access.cors_origins and origin.lower().partition("://")[2] != host:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "cross-origin",
                "a page of another origin may not do this without a key",
            )


def _is_by_loopback_address(scope: Scope) -> bool:
    try:
        return ipaddress.ip_address((scope.get("server") or ("",))[0]).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    """The name in a `Host` header, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for found, value in scope["headers"] if found == name]


def _unauthorized(detail: str, *, given: bool) -> Problem:
    challenge = f'{_REALM}, error="invalid_token"' if given else _REALM
    return Problem(
        HTTPStatus.UNAUTHORIZED, "no-key", detail, headers={"WWW-Authenticate": challenge}
    )


def _forbidden(needed: keys.Scope, detail: str) -> Problem:
    return Problem(
        HTTPStatus.FORBIDDEN,
        "missing-scope",
        detail,
        headers={
            "WWW-Authenticate": f'{_REALM}, error="insufficient_scope", scope="{needed}"',
        },
    )
