"""Every named statement fits the migrated schema and the value that its rows become."""

import dataclasses
import re
import typing
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from app.db.postgres.statements import STATEMENTS, Statement
from app.domain.jobs import Attempt, ClaimedJob, Job, LogLine, Milestone, RunningJob
from app.domain.sharing import CallUsage

# Statements whose rows are handed to a dataclass, in the order of its fields.
FILLS: dict[str, type[Any]] = {
    "claim_pending_jobs": ClaimedJob,
    "list_attempts": Attempt,
    "list_logs": LogLine,
    "list_lost_jobs": RunningJob,
    "list_milestones": Milestone,
    "list_running_jobs": RunningJob,
    "list_usage": CallUsage,
}
# The columns of all others.
COLUMNS: dict[str, tuple[str, ...]] = {
    "append_logs": ("held",),
    "cancel_job": ("status",),
    "close_dataset": (),
    "count_cached_calls": ("held",),
    "count_failed_calls": ("held",),
    "count_running_jobs": ("n",),
    "deregister_node": (),
    "drain_node": (),
    "find_lost_job": ("held",),
    "finish_job": ("held",),
    "get_dataset": ("id", "name", "columns", "row_count", "detected", "sha256"),
    "get_result": ("result",),
    "get_status": ("status",),
    "insert_dataset": (),
    "insert_dataset_row": (),
    "insert_pending_job": (),
    "list_dataset_rows": ("row_no", "cells"),
    "list_datasets_of_file": ("id", "name", "columns", "row_count", "detected", "sha256"),
    "load_call": ("answer",),
    "load_checkpoint": ("data",),
    "load_payload": ("payload",),
    "register_node": (),
    "renew_node": ("held",),
    "report_progress": ("held",),
    "report_started": ("held",),
    "retry_job": ("revived",),
    "save_call": ("held",),
    "save_checkpoint": ("held",),
}
# `get_job` is put together by hand: these of Job's fields come from several columns.
COMPOSED = {
    "limits": (
        "timeout_seconds",
        "start_timeout_seconds",
        "stall_seconds",
        "memory_limit_bytes",
    ),
    "progress": ("progress_fraction", "progress_stage", "progress_message"),
    "error": ("error_class", "error_message", "traceback"),
}
PYTHON_TYPES = {
    "text": str,
    "int2": int,
    "int4": int,
    "int8": int,
    "float8": float,
    "bool": bool,
    "timestamptz": datetime,
}


async def prepared(url: str, sql: str) -> tuple[asyncpg.Attribute, ...]:
    """The columns that the server promises for a statement."""
    connection = await asyncpg.connect(url)
    try:
        statement = await connection.prepare(sql)
        return statement.get_attributes()
    finally:
        await connection.close()


def test_every_statement_is_known_to_these_tests() -> None:
    assert set(STATEMENTS) == {*FILLS, *COLUMNS, "get_job"}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_a_statement_says_in_one_line_what_it_is_for(statement: Statement) -> None:
    assert re.fullmatch(r"[A-Z].*[.;:]", statement.purpose) or statement.purpose[-1].isalnum()
    assert not statement.sql.endswith(";")
    assert not re.search(r"select\s+\*|returning\s+\*", statement.sql)


async def test_statements_without_a_value_have_the_expected_columns(
    database_url: str, subtests: pytest.Subtests
) -> None:
    for name, columns in COLUMNS.items():
        with subtests.test(name):
            found = await prepared(database_url, STATEMENTS[name].sql)
            assert tuple(column.name for column in found) == columns


async def test_rows_fit_the_dataclass_that_they_become(
    database_url: str, subtests: pytest.Subtests
) -> None:
    for name, filled in FILLS.items():
        with subtests.test(name):
            found = await prepared(database_url, STATEMENTS[name].sql)
            fields = [field.name for field in dataclasses.fields(filled)]
            assert [column.name for column in found] == fields
            hints = typing.get_type_hints(filled)
            for column in found:
                allowed = typing.get_args(hints[column.name]) or (hints[column.name],)
                assert any(issubclass(a, PYTHON_TYPES[column.type.name]) for a in allowed), column


async def test_a_job_is_put_together_from_every_column(database_url: str) -> None:
    found = await prepared(database_url, STATEMENTS["get_job"].sql)

    expected: list[str] = []
    for field in dataclasses.fields(Job):
        expected += COMPOSED.get(field.name, (field.name,))
    assert sorted(column.name for column in found) == sorted(expected)
