"""Which scope a route asks for. A route that is not in these tables asks for `admin`.

A test holds the tables to the routes: one that changes something and has no line here fails it.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

from app.api.versions import V1
from app.domain.keys import Scope

# Open to everybody: load balancers and orchestrators have no key.
HEALTH: Final = frozenset({"/livez", "/readyz", "/startupz"})

# By method and route, {} for a parameter. What only reads asks for `read` unless it is here.
SCOPES: Final = {
    ("POST", "/enqueue"): Scope.SUBMIT,
    ("POST", "/jobs"): Scope.SUBMIT,
    ("POST", "/jobs/batch"): Scope.SUBMIT,
    ("POST", "/datasets"): Scope.SUBMIT,
    ("DELETE", "/datasets/{}"): Scope.SUBMIT,
    ("POST", "/jobs/{}/cancel"): Scope.SUBMIT,
    ("POST", "/jobs/{}/retry"): Scope.SUBMIT,
    ("POST", "/jobs/{}/clone"): Scope.SUBMIT,
    # Many at once, of whoever submitted them.
    ("POST", "/jobs/cancel"): Scope.ADMIN,
    ("POST", "/jobs/retry"): Scope.ADMIN,
    ("DELETE", "/jobs/{}"): Scope.ADMIN,
    ("POST", "/queues/{}/pause"): Scope.ADMIN,
    ("POST", "/queues/{}/resume"): Scope.ADMIN,
    ("POST", "/nodes/{}/drain"): Scope.ADMIN,
    ("POST", "/nodes/{}/resume"): Scope.ADMIN,
    ("GET", "/webhooks"): Scope.ADMIN,
    ("POST", "/webhooks"): Scope.ADMIN,
    ("GET", "/webhooks/{}"): Scope.ADMIN,
    ("PATCH", "/webhooks/{}"): Scope.ADMIN,
    ("DELETE", "/webhooks/{}"): Scope.ADMIN,
    ("POST", "/webhooks/{}/secret"): Scope.ADMIN,
    ("GET", "/webhooks/{}/deliveries"): Scope.ADMIN,
    ("POST", "/webhooks/deliveries/{}/replay"): Scope.ADMIN,
}
# Of these a `submit` key may touch only what was submitted with it.
_OWN: Final[Mapping[tuple[str, str], Literal["job", "dataset"]]] = {
    ("POST", "/jobs/{}/cancel"): "job",
    ("POST", "/jobs/{}/retry"): "job",
    ("POST", "/jobs/{}/clone"): "job",
    ("DELETE", "/datasets/{}"): "dataset",
}
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_PARAMETER: Final = re.compile(r"\{[^{}]*\}")


def route_path(scope_path: str, root_path: str = "") -> str:
    """The path as the routes have it, without a proxy's prefix and the version."""
    path = scope_path.removeprefix(root_path) if root_path else scope_path
    return path.removeprefix(V1) if path.startswith(V1 + "/") else path


def is_declared(method: str, template: str) -> bool:
    """Whether the tables know of this route; `template` as FastAPI has it."""
    return method in READING or (method, _bare(template)) in SCOPES


def scope_of(method: str, template: str) -> Scope:
    """What the route `template` asks for; not of a path, which the router may read otherwise."""
    method = "GET" if method == "HEAD" else method
    default = Scope.READ if method in READING else Scope.ADMIN
    return SCOPES.get((method, _bare(template)), default)


def owned_by_submitter(method: str, template: str) -> Literal["job", "dataset"] | None:
    """What has to be of the same `submit` key that uses this route, None where anything may be."""
    return _OWN.get((method, _bare(template)))


def _bare(template: str) -> str:
    return _PARAMETER.sub("{}", route_path(template))
