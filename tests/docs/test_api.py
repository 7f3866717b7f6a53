"""The description of the API: every kind of problem is listed, and every header that is sent."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from app.api.datasets_schemas import DatasetSummaryResponse
from app.api.examples import EXAMPLES
from app.api.following_schemas import AttemptResponse
from app.api.pipelines import PipelineResponse
from app.api.problem_kinds import KINDS
from app.api.schemas import JobResponse, ProblemResponse
from app.api.server import NoScheduler, WebServer
from app.api.webhooks import DeliveryResponse, NewWebhookResponse, SecretResponse, WebhookResponse
from app.db.interface import DBInterface
from docs.render import API, ROOT, kinds

DOCUMENT: dict[str, Any] = WebServer(cast("DBInterface", None), NoScheduler()).app.openapi()
MODELS = (
    AttemptResponse,
    DatasetSummaryResponse,
    DeliveryResponse,
    JobResponse,
    NewWebhookResponse,
    PipelineResponse,
    ProblemResponse,
    SecretResponse,
    WebhookResponse,
)
# Where a job's status or a cap stands in the way.
OPTIONAL = {"job_status", "violated_policies"}
# Made by the framework, or told by the name of a status.
UNNAMED = {"not-found", "method-not-allowed", "bad-request", "bad-http"}


def named(path: Path) -> Iterator[str]:
    """The kinds that a module names: of problems, and of those who make them with a kind."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id="Problem"), args=[_, ast.Constant(value=str(kind)), *_]):
                yield kind
            case ast.Call(
                func=ast.Name(id="_unavailable" | "_no_such"),
                args=[ast.Constant(value=str(kind)), *_],
            ):
                yield kind if "-" in kind or kind == "stuck" else f"no-such-{kind}"
            case _:
                pass


def test_every_kind_of_problem_is_listed() -> None:
    used = {kind for path in (ROOT / "app" / "api").glob("*.py") for kind in named(path)}
    # One of two, chosen beside the call.
    used |= {"too-many-followers", "stopping"}
    listed = [kind for kind, _, _ in KINDS]

    assert len(listed) == len(set(listed))
    assert used | UNNAMED == set(listed)
    assert kinds() in API.read_text("utf-8"), "run `python docs/render.py`"


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_documented_status_has_a_kind() -> None:
    with_kinds = {status for _, statuses, _ in KINDS for status in statuses}
    for name, operation in operations():
        documented = {int(status) for status in operation["responses"] if int(status) >= 400}
        assert documented <= with_kinds, name


@pytest.mark.parametrize(
    ("status", "header"),
    [
        ("401", "WWW-Authenticate"),
        ("403", "WWW-Authenticate"),
        ("429", "Retry-After"),
        ("429", "RateLimit"),
        ("429", "RateLimit-Policy"),
        ("503", "Retry-After"),
    ],
)
def test_headers_of_refusals_are_documented(status: str, header: str) -> None:
    answers = [
        (name, operation["responses"][status])
        for name, operation in operations()
        if status in operation["responses"]
    ]
    assert answers
    assert [name for name, answer in answers if header not in answer["headers"]] == []


def test_a_submission_tells_what_room_the_caps_leave() -> None:
    # Uploads have a cap of another kind, and a retry is no submission: the room may be somebody
    # else's.
    others = {"POST /datasets", "POST /jobs/{job_id}/retry", "POST /jobs/retry"}
    submissions = [(n, o) for n, o in operations() if "429" in o["responses"] and n not in others]
    assert len(submissions) == 4
    for name, operation in submissions:
        [answer] = [a for status, a in operation["responses"].items() if status.startswith("2")]
        assert {"Location", "RateLimit", "RateLimit-Policy"} <= set(answer["headers"]), name


# What a thematic analysis finds: docs/thematic-analysis.md shows it.
WITHOUT_EXAMPLE = {"ThemesResponse", "QuotesPage", "ResponsesPage"}


def test_every_answer_has_an_example_that_is_one() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    answers = set()
    for _, operation in operations():
        for answer in operation["responses"].values():
            for content in answer.get("content", {}).values():
                if reference := content.get("schema", {}).get("$ref"):
                    answers.add(reference.split("/")[-1])
    assert {"JobResponse", "AttemptPage", "ProblemResponse"} <= answers
    assert {name for name in answers if "examples" not in schemas[name]} == WITHOUT_EXAMPLE
    for name, example in EXAMPLES.items():
        assert set(example) == set(schemas[name]["properties"]) - OPTIONAL, name


@pytest.mark.parametrize("model", MODELS)
def test_an_example_is_what_the_model_takes(model: type[BaseModel]) -> None:
    model.model_validate(EXAMPLES[model.__name__])


def test_every_page_documents_its_link() -> None:
    for name, operation in operations():
        content = operation["responses"].get("200", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema", {}).get("$ref", "")
        if "next" in DOCUMENT["components"]["schemas"].get(schema.split("/")[-1], {}).get(
            "properties", {}
        ):
            assert "Link" in operation["responses"]["200"]["headers"], name
