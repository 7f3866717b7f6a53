"""Puts the parts of security around an application, and says so in its OpenAPI document."""

from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from app.api.security import Access, Guard
from app.api.security_headers import (
    CORS_ANSWER_HEADERS,
    CORS_METHODS,
    CORS_REQUEST_HEADERS,
    SecurityHeaders,
)
from app.api.security_keys import KeyRing
from app.api.security_quota import Quota
from app.api.security_scopes import HEALTH, is_declared, scope_of
from app.db.contracts.keys import KeyStore

_KEY = "apiKey"


class Security:
    """Keys, caps and headers of one application.

    Attributes:
        quota: asked by the routes that submit.
    """

    def __init__(self, db: KeyStore, access: Access) -> None:
        self.quota = Quota(db, access)
        self._db = db
        self._access = access
        self._ring = KeyRing(db, access.admin_key)

    def guard(self, app: FastAPI) -> None:
        """Let nothing reach the routes that may not; call it before other middleware is added."""
        app.add_middleware(Guard, db=self._db, ring=self._ring, access=self._access)

    def cover(self, app: FastAPI) -> None:
        """Give every answer its headers; call it when all other middleware is added."""
        if self._access.cors_origins:
            # Never with credentials: a key is sent by the page's own code or not at all.
            app.add_middleware(
                CORSMiddleware,
                allow_origins=self._access.cors_origins,
                allow_methods=CORS_METHODS,
                allow_headers=CORS_REQUEST_HEADERS,
                expose_headers=CORS_ANSWER_HEADERS,
            )
        app.add_middleware(SecurityHeaders)

    async def close(self) -> None:
        """End what goes on beside the requests."""
        await self._ring.close()
        await self.quota.close()


def describe_security(document: dict[str, Any], problems: dict[str, dict[str, Any]]) -> None:
    """Add the key, each operation's scope and what a request without it is answered.

    Args:
        problems: by status, the responses 400, 401, 403, 414, 421, 431 and 503.
    """
    document["components"]["securitySchemes"] = {
        _KEY: {
            "type": "http",
            "scheme": "bearer",
            "description": "A key of `haulage keys create`; needed once there is one.",
        }
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            answers = operation["responses"]
            # Of a path with control characters, a long URL, large headers.
            for status in ("400", "414", "431"):
                answers.setdefault(status, problems[status])
            if path in HEALTH:
                continue
            for status in ("401", "403", "421", "503"):
                answers.setdefault(status, problems[status])
            if is_declared(method.upper(), path):
                scope = scope_of(method.upper(), path)
                # The empty one: as long as no key was made none is needed.
                operation["security"] = [{_KEY: [scope.value]}, {}]
