"""What makes two submissions equal."""

import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from app.domain.jobs import JobOptions, Limits
from app.domain.submissions import Batch, common_fingerprint, fingerprint

OTHER: dict[str, Any] = {
    "pipeline": "p",
    "queue": "q",
    "priority": 1,
    "run_at": datetime(2040, 1, 1, tzinfo=UTC),
    "delay_seconds": 1.0,
    "max_attempts": 2,
    "limits": Limits(stall_seconds=2.0),
    "tags": ("x",),
    "metadata": {"x": 1},
}
ASIDE: dict[str, Any] = {
    "submitted_by": "somebody",
    "idempotency_key": "key",
    "fingerprint": b"x",
    "job_id": "id",
}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": {"c": 2, "d": 3}}', '{"b":{"d":3,"c":2},"a":1}'),
        ('{"a": 100.0}', '{"a": 1e2}'),
        ('{"a": [1, -3, 0], "b": 100}', '{"a": [1.0, -3.0, -0.0], "b": 1e2}'),
        ('{"a": 9007199254740992}', '{"a": 9007199254740992.0}'),
        ('{"a": "\\u00e9/"}', '{"a": "é\\/"}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
    ],
)
def test_equal_payloads_have_equal_fingerprints_however_they_are_spelled(
    one: str, other: str
) -> None:
    assert fingerprint(json.loads(one), JobOptions()) == fingerprint(
        json.loads(other), JobOptions()
    )


def test_different_payloads_have_different_fingerprints() -> None:
    texts = (
        '{"a": 1}',
        '{"a": "1"}',
        '{"a": true}',
        '{"a": [1]}',
        '{"a": 18446744073709551616}',
        '{"a": 18446744073709551617}',
        '{"a": null}',
        "{}",
        '{"a": [1, 2]}',
        '{"a": [2, 1]}',
    )
    assert len({fingerprint(json.loads(text), JobOptions()) for text in texts}) == len(texts)


def test_every_option_counts_but_who_submits_and_under_which_key() -> None:
    assert {field.name for field in fields(JobOptions)} >= {*OTHER, *ASIDE}
    plain = fingerprint({}, JobOptions())
    different = {
        fingerprint({}, replace(JobOptions(), **{name: value})) for name, value in OTHER.items()
    }

    assert len(different | {plain}) == len(OTHER) + 1
    assert fingerprint({}, replace(JobOptions(), **ASIDE)) == plain


def test_limits_and_instants_are_compared_by_what_they_mean() -> None:
    half_past = timezone(timedelta(hours=5, minutes=30))
    here = JobOptions(run_at=datetime(2040, 1, 1, 5, 30, tzinfo=half_past))
    there = JobOptions(run_at=datetime(2040, 1, 1, tzinfo=UTC))
    assert fingerprint({}, here) == fingerprint({}, there)

    each = [Limits(timeout_seconds=5.0), Limits(start_timeout_seconds=5.0), Limits()]
    assert len({fingerprint({}, JobOptions(limits=limits)) for limits in each}) == 3


def test_a_fingerprint_stays_what_it_is_from_one_version_to_the_next() -> None:
    options = JobOptions(pipeline="p", tags=("x",), limits=Limits(timeout_seconds=1.5))

    # Keys outlive a deployment: were this to change, every repetition after it would be refused.
    assert (
        fingerprint({"a": [1, "é"]}, options).hex()
        == "4494d79921ba12978eb7789cf34cea933a54547c8028793ea2689eb8bc6d8b0f"
    )


def test_several_jobs_are_equal_in_their_order() -> None:
    a, b = fingerprint({"a": 1}, JobOptions()), fingerprint({"b": 1}, JobOptions())

    assert common_fingerprint([a, b]) == common_fingerprint([a, b])
    assert len({common_fingerprint(some) for some in ([a, b], [b, a], [a], [a, b, b])}) == 4


@pytest.mark.parametrize(
    ("pending", "running", "is_done"), [(0, 0, True), (1, 0, False), (0, 1, False)]
)
def test_a_batch_is_done_when_nothing_waits_or_runs(
    *, pending: int, running: int, is_done: bool
) -> None:
    batch = Batch("id", 6, pending, running, 1, 2, 3, datetime.now(UTC))

    assert batch.is_done is is_done
    assert list(batch.counts.values()) == [pending, running, 1, 2, 3]
