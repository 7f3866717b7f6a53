"""What `migrations/lint.py` says about the steps, and about bad ones."""

from types import MappingProxyType

import pytest

from migrations import lint

TIMEOUT = "set lock_timeout = '3s';\n"


def test_every_step_passes_and_every_exception_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = lint.steps()

    assert [revision for revision, sql in steps if not lint.passes(revision, sql)] == []
    excepted = set(lint.HARMLESS)
    monkeypatch.setattr(lint, "HARMLESS", MappingProxyType({}))
    assert excepted == {revision for revision, sql in steps if not lint.passes(revision, sql)}


@pytest.mark.parametrize(
    ("sql", "complaint"),
    [
        (
            f"{TIMEOUT}create index jobs_pid_idx on haulage.jobs (queue);",
            "require-concurrent-index-creation",
        ),
        (f"{TIMEOUT}drop index haulage.jobs_claim_idx;", "require-concurrent-index-deletion"),
        (
            f"{TIMEOUT}alter table haulage.jobs add column x int not null;",
            "adding-required-field",
        ),
        (
            f"{TIMEOUT}alter table haulage.jobs alter column attempt type bigint;",
            "changing-column-type",
        ),
        (
            f"{TIMEOUT}alter table haulage.jobs add constraint c check (priority > 0);",
            "constraint-missing-not-valid",
        ),
        ("alter table haulage.jobs add column x int;", "require-lock-timeout"),
    ],
)
def test_a_step_that_stops_writers_is_refused(
    sql: str, complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not lint.passes("9000", sql)
    assert complaint in "".join(capfd.readouterr())


def test_a_step_that_stops_nobody_passes() -> None:
    assert lint.passes(
        "9000",
        f"{TIMEOUT}alter table haulage.jobs add column x int;\n"
        "create index concurrently jobs_pid_idx on haulage.jobs (queue);",
    )
