"""The OpenAPI document: FastAPI's own, with errors told as they really are sent.

FastAPI would list a validation error of its own on every route and file our problems under
`application/json`.
"""

from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.api.examples import add_examples
from app.api.problems import MEDIA_TYPE
from app.api.schemas import ProblemResponse
from app.api.security_setup import describe_security

_REF: Final = "#/components/schemas/"


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """A route's `responses` for these errors."""
    schema = {"$ref": f"{_REF}{ProblemResponse.__name__}"}
    answers: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        answers[status] = {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        if status in _HEADERS:
            answers[status]["headers"] = _HEADERS[status]
    return answers


def headers(**descriptions: str) -> dict[str, Any]:
    """A response's headers by name, underscores for hyphens."""
    return {
        name.replace("_", "-"): {"description": text, "schema": {"type": "string"}}
        for name, text in descriptions.items()
    }


# Of every submission with a key, structured fields after draft-ietf-httpapi-ratelimit-headers.
QUOTA: Final = headers(
    RateLimit_Policy="The caps of the key, where it has any.",
    RateLimit="What room they leave.",
)
_CHALLENGE: Final = headers(WWW_Authenticate="That a key is wanted, and why this one will not do.")
_HEADERS: Final[dict[int, dict[str, Any]]] = {
    401: _CHALLENGE,
    403: _CHALLENGE,
    429: {**headers(Retry_After="Seconds after which asking again makes sense."), **QUOTA},
    503: headers(Retry_After="Seconds after which asking again makes sense, where it does."),
}


def install_openapi(app: FastAPI) -> None:
    """Let `app` answer with the corrected document, built at the first request."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _corrected(
                get_openapi(
                    title=app.title,
                    version=app.version,
                    description=app.description,
                    routes=app.routes,
                )
            )
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]


def _corrected(document: dict[str, Any]) -> dict[str, Any]:
    schemas = document["components"]["schemas"]
    for framework_schema in ("HTTPValidationError", "ValidationError"):
        schemas.pop(framework_schema, None)
    problem = ProblemResponse.model_json_schema(ref_template=f"{_REF}{{model}}")
    schemas.update(problem.pop("$defs", {}))
    schemas[ProblemResponse.__name__] = problem
    add_examples(schemas)
    for path in document["paths"].values():
        for operation in path.values():
            unprocessable = operation["responses"].get("422", {})
            if "HTTPValidationError" in str(unprocessable):
                del operation["responses"]["422"]
    refusals = problems(400, 401, 403, 414, 421, 431, 503)
    describe_security(document, {str(status): told for status, told in refusals.items()})
    return document
