"""Errors carry their facts as fields and can be told in one line."""

import pickle

import pytest

from app.domain import errors

EXAMPLES = [
    errors.ConfigurationError("HAULAGE_PORT", 70_000, "choose at most 65535"),
    errors.DatabaseUnavailableError("no route"),
    errors.SchemaMismatchError(None, "0001", "run `haulage db upgrade`"),
    errors.SchemaInUseError("view theirs depends on view reporting.jobs"),
    errors.JobNotFoundError("abc"),
    errors.JobDeletedError("abc"),
    errors.NodeNotFoundError("abc"),
    errors.NodeGoneError("abc", "lost"),
    errors.LeaseLostError("abc", 3),
    errors.IllegalTransitionError("failed", "claimed"),
    errors.InvalidJsonError("/a", "NUL"),
    errors.TooLargeError("result", 11, 10),
    errors.PipelineLoadError("a:B", "no module a"),
    errors.UnknownPipelineError("x", ("a", "b")),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_ours_and_its_message_holds_its_facts(error: errors.HaulageError) -> None:
    assert isinstance(error, errors.HaulageError)
    assert "\n" not in str(error)
    for name, value in vars(error).items():
        if name not in {"found", "known"}:
            assert str(value) in str(error), name


def test_the_remedy_and_both_revisions_are_told_when_the_schema_differs() -> None:
    behind = errors.SchemaMismatchError("0001", "0002", "run it")
    assert str(behind) == "the schema is at revision 0001, this program needs 0002: run it"
    assert "at revision none" in str(errors.SchemaMismatchError(None, "0002", "run it"))


def test_the_known_pipelines_are_told_when_one_is_unknown() -> None:
    assert str(errors.UnknownPipelineError("x", ("a", "b"))) == "no pipeline 'x'; registered: a, b"
    assert str(errors.UnknownPipelineError("x", ())).endswith("registered: none")


def test_a_plain_error_survives_pickling() -> None:
    error = errors.DatabaseUnavailableError("no route")
    assert str(pickle.loads(pickle.dumps(error))) == "no route"  # noqa: S301  our own bytes
