"""One set of routes under two roots: `/` as ever, and `/v1` for clients that pin a version."""

from typing import Final

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute, APIRouter

V1: Final = "/v1"


def include_in_both(app: FastAPI, router: APIRouter) -> None:
    """Serve `router` at the root and under /v1; the OpenAPI document lists it once."""
    _answer_head(app.router)  # the pages of the documentation
    _answer_head(router)
    app.include_router(router)
    app.include_router(router, prefix=V1, include_in_schema=False)
    app.state.router = router


def _answer_head(router: APIRouter) -> None:
    """What GET would answer, for its headers (RFC 9110, 9.1); the server leaves out the body."""
    for route in list(router.routes):
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()):
            router.add_api_route(
                route.path,
                route.endpoint,
                methods=["HEAD"],
                name=f"head_{route.name}",
                include_in_schema=False,
                response_model=route.response_model,
                response_class=route.response_class,
            )


def allowed_methods(http: Request) -> list[str]:
    """Every method that the request's path knows; the framework names those of one route alone."""
    router: APIRouter | None = getattr(http.app.state, "router", None)
    path = http.url.path.removeprefix(V1) if http.url.path.startswith(V1 + "/") else http.url.path
    by_template: dict[str, set[str]] = {}
    for route in router.routes if router is not None else ():
        if isinstance(route, APIRoute) and route.path_regex.match(path):
            by_template.setdefault(route.path, set()).update(route.methods or ())
    # "/jobs/retry" is a path of its own, and only by the way the job with that id.
    own = min(by_template, key=lambda template: template.count("{"), default="")
    return sorted(by_template.get(own, ()))


def beside(http: Request, path: str) -> str:
    """`path` under the root that the request came by, for `Location` and links."""
    return V1 + path if http.url.path.startswith(V1 + "/") else path
