"""One set of routes under two roots: `/` as ever, and `/v1` for clients that pin a version."""

from typing import Final

from fastapi import FastAPI, Request
from fastapi.routing import APIRouter

V1: Final = "/v1"


def include_in_both(app: FastAPI, router: APIRouter) -> None:
    """Serve `router` at the root and under /v1; the OpenAPI document lists it once."""
    app.include_router(router)
    app.include_router(router, prefix=V1, include_in_schema=False)


def beside(http: Request, path: str) -> str:
    """`path` under the root that the request came by, for `Location` and links."""
    return V1 + path if http.url.path.startswith(V1 + "/") else path
