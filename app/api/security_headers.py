"""What every answer tells a browser: to guess nothing, frame nothing, keep nothing, share nothing.

Errors that nobody else has answered are answered here, or their answers would lack all of it.

A route that says one of these itself is left its word.
"""

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import on_unexpected
from app.api.security_scopes import route_path

# Answers are data: they run and load nothing, wherever they are opened.
DATA_POLICY: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The pages of FastAPI have their script in the page and load the rest from there.
DOCS_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; worker-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
DOCS_PATHS: Final = frozenset({"/docs", "/redoc", "/docs/oauth2-redirect"})
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
CORS_METHODS: Final = ("GET", "POST", "PATCH", "DELETE")
CORS_REQUEST_HEADERS: Final = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-None-Match",
    "Last-Event-ID",
    "Prefer",
)
CORS_ANSWER_HEADERS: Final = (
    "ETag",
    "Idempotency-Replayed",
    "Link",
    "Location",
    "Preference-Applied",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
)


class SecurityHeaders:
    """ASGI middleware that adds them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = route_path(scope["path"], scope.get("root_path", ""))

        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if message["type"] == "http.response.start":
                add_to(MutableHeaders(scope=message), path)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            if has_begun:
                raise
            response = await on_unexpected(Request(scope), error)
            await response(scope, receive, sending)


def add_to(headers: MutableHeaders, path: str) -> None:
    """Add what the answer does not say itself."""
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    policy = DOCS_POLICY if path in DOCS_PATHS else DATA_POLICY
    headers.setdefault("Content-Security-Policy", policy)
    # Jobs are somebody's data. What has an ETag may be kept, if it is asked for every time.
    keeping = "private, no-cache" if "etag" in headers else "no-store"
    headers.setdefault("Cache-Control", keeping)
