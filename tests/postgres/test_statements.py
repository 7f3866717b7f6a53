"""Every named statement fits the migrated schema and the value that its rows become."""

import dataclasses
import re
import typing
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from app.db.postgres.statements import STATEMENTS, Statement
from app.domain.following import Checkpoint
from app.domain.jobs import Attempt, ClaimedJob, Job, LogLine, Milestone, RunningJob
from app.domain.keys import ApiKey
from app.domain.managing import NodeState, QueueState
from app.domain.sharing import CallUsage, DatasetSummary, JsonRow
from app.domain.size import IndexSize, SnapshotHolder, TableSize
from app.domain.submissions import Batch
from app.domain.webhooks import Delivery, DueDelivery, Rotation, Webhook

# Statements whose rows are handed to a dataclass, in the order of its fields.
FILLS: dict[str, type[Any]] = {
    "claim_deliveries": DueDelivery,
    "claim_pending_jobs": ClaimedJob,
    "get_batch": Batch,
    "list_attempts": Attempt,
    "list_dataset_json": JsonRow,
    "list_datasets": DatasetSummary,
    "list_attempts_after": Attempt,
    "list_checkpoints": Checkpoint,
    "list_deliveries": Delivery,
    "list_logs": LogLine,
    "list_lost_jobs": RunningJob,
    "list_milestones": Milestone,
    "list_nodes": NodeState,
    "list_queues": QueueState,
    "rotate_secret": Rotation,
    "list_running_jobs": RunningJob,
    "list_index_sizes": IndexSize,
    "list_snapshots": SnapshotHolder,
    "list_table_sizes": TableSize,
    "list_usage": CallUsage,
}
DATASET = ("id", "name", "columns", "row_count", "detected", "sha256", "created_at")
WEBHOOK = tuple(field.name for field in dataclasses.fields(Webhook))
KEY = tuple(field.name for field in dataclasses.fields(ApiKey))
# The columns of all others.
COLUMNS: dict[str, tuple[str, ...]] = {
    "announce_pipelines": (),
    "append_logs": ("held",),
    "cancel_jobs": ("id", "status"),
    "delete_webhook": ("found",),
    "close_dataset": (),
    "count_cached_calls": ("held",),
    "count_pending": ("jobs", "size_bytes"),
    "count_failed_calls": ("held",),
    "count_running_jobs": ("n",),
    "delete_job": ("gone",),
    "deregister_node": (),
    "disable_webhook": ("found",),
    "drain_node": (),
    "find_log_tail": ("id",),
    "enable_webhook": ("found",),
    "end_try": ("held",),
    "find_key": KEY,
    "find_lost_job": ("held",),
    "find_jobs_by_key": ("submitted_by", "idempotency_key", "id", "payload_hash", "batch_id"),
    "finish_job": ("held",),
    "get_dataset": DATASET,
    "get_payload": ("payload",),
    "list_result_pieces": ("piece",),
    "get_checkpoint": ("data",),
    "get_status": ("status",),
    "insert_dataset": ("created_at",),
    "insert_pending_jobs": ("id",),
    "is_deleted": ("deleted",),
    "list_checkpoint_stages": ("stage",),
    "delete_dataset": ("is_needed",),
    "get_result_state": ("status", "claim_no"),
    "get_result_themes": ("themes",),
    "get_theme_quotes": ("theme", "items", "count", "has_more"),
    "list_assignments": ("items", "count", "has_more"),
    "list_dataset_rows": ("row_no", "cells"),
    "list_datasets_of_file": DATASET,
    "list_lines": (
        "n",
        "last_id",
        "seen",
        "id",
        "attempt",
        "number",
        "level",
        "source",
        "text",
        "at",
    ),
    "list_news": (
        "n",
        "status",
        "version",
        "progress_fraction",
        "progress_stage",
        "progress_message",
        "event_id",
        "kind",
        "attempt",
        "stage",
        "fraction",
        "message",
        "created_at",
    ),
    "load_call": ("answer",),
    "load_checkpoint": ("data",),
    "load_payload": ("payload",),
    "pause_queue": (),
    "prune_calls": ("n",),
    "prune_datasets": ("n",),
    "prune_jobs": ("n",),
    "prune_nodes": ("n",),
    "prune_tombstones": ("n",),
    "get_submitter": ("submitted_by",),
    "has_keys": ("found",),
    "count_datasets": ("datasets",),
    "get_dataset_submitter": ("submitted_by",),
    "give_back_try": (),
    "insert_key": KEY,
    "hold_webhook": ("found",),
    "insert_webhook": WEBHOOK,
    "list_webhooks": WEBHOOK,
    "list_keys": KEY,
    "note_key_use": (),
    "register_node": (),
    "renew_node": ("held",),
    "replay_delivery": ("outcome",),
    "report_progress": ("held",),
    "report_started": ("held",),
    "resume_queue": (),
    "retry_jobs": ("id", "violated"),
    "revoke_key": ("revoked",),
    "save_call": ("held",),
    "save_checkpoint": ("held",),
    "schema_revision": ("version_num",),
    "set_node_state": ("held",),
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
    "text[]": str,
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
