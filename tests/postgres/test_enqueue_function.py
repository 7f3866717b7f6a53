"""`haulage.enqueue`: the rows, bounds and defaults of POST /jobs."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import pytest
from support.enqueueing import (
    DEFAULT,
    REGISTRATIONS,
    announce,
    by_request,
    enqueue,
    refusal,
)
from support.sessions import count

from app.db.definitions import source
from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import (
    LEAST_MEMORY_LIMIT_BYTES,
    LEAST_STALL_SECONDS,
    MAX_ATTEMPTS,
    MAX_JSON_DEPTH,
    MAX_MEMORY_LIMIT_BYTES,
    MAX_METADATA_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_START_TIMEOUT_SECONDS,
    MAX_TIMEOUT_SECONDS,
)
from app.domain.submissions import MAX_KEY_CHARACTERS

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

UNKNOWN_PIPELINE = "JQ002"
INSTANT = datetime(2031, 5, 17, 10, 30, 0, 123456, UTC)
DATASET = "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a11"
NEVER_EQUAL = {"id", "created_at", "run_at"}


@pytest.fixture(autouse=True)
async def _announced(database_url: str) -> None:
    await announce(database_url)


@pytest.fixture
async def db(database_url: str) -> AsyncGenerator[PostgresJobsDB, None]:
    adapter = PostgresJobsDB(database_url, notify=False)
    yield adapter
    await adapter.close()


# -- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pipeline": "plain"},
        {"pipeline": "limited"},
        {
            "pipeline": "limited",
            "max_attempts": 7,
            "timeout_seconds": 0.25,
            "start_timeout_seconds": 3,
            "stall_seconds": 2.5,
            "memory_limit_bytes": 2**40,
        },
        {"queue": "böse \U0001f600 'q' \"$1\" ; --", "priority": -32_768},
        {"run_at": INSTANT, "priority": 32_767},
        {"delay_seconds": 90.5},
        {"tags": ["b", "a", "a", "ü, {}\"'\\"], "metadata": {"n": [1, {"k": None}], "ä": "\u2028"}},
        {"pipeline": "reading", "payload": {"dataset": {"id": DATASET}, "text_column": "a"}},
        {"pipeline": "reading", "payload": {"dataset": {"id": f"{{{DATASET.upper()}}}"}}},
        {"pipeline": "reading", "payload": {"dataset": {"id": "urn:uuid:" + DATASET}}},
        {"pipeline": "reading", "payload": {"dataset": {"id": "mine"}}},
        {"pipeline": "reading", "payload": {"dataset": DATASET}},
        {"pipeline": "plain", "payload": {"dataset": {"id": DATASET}}},
        {"payload": {"a": 2**64, "b": [0.1, -0.0, 1e-300], "c": "\x7f\u0394", "": {}}},
    ],
    ids=str,
)
async def test_a_job_from_sql_is_the_one_that_a_request_makes(
    db: PostgresJobsDB, observer: Connection, options: dict[str, Any]
) -> None:
    await observer.execute(
        "insert into haulage.datasets (id, name, sha256, columns, row_count)"
        " values ($1, 'a.csv', '\\x01', '{a}', 1)",
        UUID(DATASET),
    )
    payload = options.pop("payload", {"a": 1})
    asked = await by_request(db, payload, **options)
    ours = await enqueue(observer, payload, **options)

    [theirs], [mine] = [
        await observer.fetch("select * from haulage.jobs where id = $1", UUID(job_id))
        for job_id in (asked, ours)
    ]
    assert {k: v for k, v in mine.items() if k not in NEVER_EQUAL} == {
        k: v for k, v in theirs.items() if k not in NEVER_EQUAL
    }
    if "run_at" in options:
        assert mine["run_at"] == theirs["run_at"] == INSTANT
    else:
        assert mine["run_at"] - mine["created_at"] == theirs["run_at"] - theirs["created_at"]
    for table, columns in (
        ("job_payloads", "payload"),
        ("job_events", "claim_no, attempt, kind, stage, fraction, message"),
    ):
        query = f"select {columns} from haulage.{table} where job_id = $1"  # noqa: S608
        assert [tuple(row) for row in await observer.fetch(query, UUID(ours))] == [
            tuple(row) for row in await observer.fetch(query, UUID(asked))
        ]
    assert (await count(observer))[1:] == (2, 2)


async def test_what_is_null_takes_its_default(observer: Connection) -> None:
    names = ["pipeline", "queue", "priority", "run_at", "delay_seconds", "tags", "metadata"]
    job_id = await enqueue(observer, {}, **dict.fromkeys(names), submitted_by=None)

    row = await observer.fetchrow("select * from haulage.jobs where id = $1", UUID(job_id))
    assert row is not None
    assert (row["pipeline"], row["queue"], row["priority"]) == (DEFAULT, "default", 0)
    assert (row["tags"], row["metadata"], row["submitted_by"]) == ([], "{}", "")
    assert row["run_at"] == row["created_at"]


async def test_ids_are_of_version_7_and_ascend_within_a_transaction(observer: Connection) -> None:
    async with observer.transaction():
        before = new_id()
        ids = [
            row[0]
            for row in await observer.fetch(
                "select haulage.enqueue('{}') from generate_series(1, 2000)"
            )
        ]
        after = new_id()

    assert {(job_id.version, job_id.variant) for job_id in map(UUID, map(str, ids))} == {
        (7, "specified in RFC 4122")
    }
    assert ids == sorted(ids)
    assert len(set(ids)) == 2_000
    # By the millisecond: the clocks are the same one, of this machine.
    assert before[:13] <= str(ids[0])[:13] <= str(ids[-1])[:13] <= after[:13]
    claimed = await observer.fetch("select id from haulage.jobs order by priority desc, run_at, id")
    assert [row["id"] for row in claimed] == ids


# -- bounds ---------------------------------------------------------------------------------------


def nested(levels: int) -> dict[str, Any]:
    """Containers within each other, objects and lists by turns."""
    value: Any = {}
    for level in range(levels - 1):
        value = [value] if (levels - level) % 2 else {"k": value}
    return value if isinstance(value, dict) else {"k": value[0]}


def of_bytes(size: int) -> dict[str, str]:
    """An object whose JSON text has this many bytes, written compactly and with spaces."""
    return {"k": "x" * (size - len('{"k": ""}'))}


CASES: list[tuple[str, Any, bool]] = [
    ("payload", [], False),
    ("payload", "text", False),
    ("payload", 1, False),
    ("payload", None, False),
    ("payload", {}, True),
    ("payload", nested(MAX_JSON_DEPTH), True),
    ("payload", nested(MAX_JSON_DEPTH + 1), False),
    ("payload", {"deep": nested(MAX_JSON_DEPTH)}, False),
    ("payload", {"n": 10**1000 - 1}, True),
    ("payload", {"n": 10**1001}, False),
    ("payload", {"list": [{"n": -(10**1001)}]}, False),
    ("payload", {"digits": "1" * 2_000}, True),
    ("payload", {"n": 1.7e308}, True),
    ("payload", of_bytes(MAX_PAYLOAD_BYTES), True),
    ("payload", of_bytes(MAX_PAYLOAD_BYTES + 2), False),
    ("payload", {"ü": "\U0001f600" * (MAX_PAYLOAD_BYTES // 4)}, False),
    ("pipeline", "", False),
    ("pipeline", "x" * 256, False),
    ("pipeline", "unknown", False),
    ("pipeline", "app.pipelines.demo:Echo", False),
    ("pipeline", "LIMITED", False),
    ("queue", "", False),
    ("queue", "\U0001f600" * 255, True),
    ("queue", "q" * 256, False),
    ("priority", -32_768, True),
    ("priority", -32_769, False),
    ("priority", 32_767, True),
    ("priority", 32_768, False),
    ("delay_seconds", -1e-9, False),
    ("delay_seconds", 0.0, True),
    ("delay_seconds", MAX_TIMEOUT_SECONDS, True),
    ("delay_seconds", MAX_TIMEOUT_SECONDS + 1, False),
    ("delay_seconds", float("nan"), False),
    ("delay_seconds", float("inf"), False),
    ("run_at", datetime(1, 1, 2, tzinfo=UTC), True),
    ("run_at", datetime(9999, 12, 31, 23, 59, 59, 0, UTC), True),
    ("max_attempts", 0, False),
    ("max_attempts", 1, True),
    ("max_attempts", MAX_ATTEMPTS, True),
    ("max_attempts", MAX_ATTEMPTS + 1, False),
    ("tags", ["t"] * 50, True),
    ("tags", ["t"] * 51, False),
    ("tags", ["t" * 100], True),
    ("tags", ["t" * 101], False),
    ("tags", ["t", ""], False),
    ("tags", ["t", None], False),
    ("metadata", [], False),
    ("metadata", of_bytes(MAX_METADATA_BYTES), True),
    ("metadata", of_bytes(MAX_METADATA_BYTES + 2), False),
    ("metadata", nested(MAX_JSON_DEPTH), True),
    ("metadata", nested(MAX_JSON_DEPTH + 1), False),
    ("metadata", {"n": 10**1001}, False),
    ("stall_seconds", LEAST_STALL_SECONDS, True),
    ("stall_seconds", 0.999, False),
    ("stall_seconds", float("nan"), False),
    ("memory_limit_bytes", LEAST_MEMORY_LIMIT_BYTES, True),
    ("memory_limit_bytes", LEAST_MEMORY_LIMIT_BYTES - 1, False),
    ("memory_limit_bytes", MAX_MEMORY_LIMIT_BYTES, True),
    ("memory_limit_bytes", MAX_MEMORY_LIMIT_BYTES + 1, False),
    *(
        (name, value, is_taken)
        for name, most in (
            ("timeout_seconds", MAX_TIMEOUT_SECONDS),
            ("start_timeout_seconds", MAX_START_TIMEOUT_SECONDS),
            ("stall_seconds", MAX_TIMEOUT_SECONDS),
        )
        for value, is_taken in (
            (0.0, False),
            (-1.0, False),
            (most, True),
            (most + 1, False),
            (float("inf"), False),
        )
    ),
]


async def test_the_bounds_are_those_of_a_request(
    db: PostgresJobsDB, observer: Connection, subtests: pytest.Subtests
) -> None:
    for number, (name, value, is_taken) in enumerate(CASES):
        with subtests.test(f"{number} {name}"):
            options = {"payload": {}, name: value}
            if is_taken:
                await enqueue(observer, **options)
                await by_request(db, **options)
                continue
            error = await refusal(observer, **options)
            assert error.column_name == name
            unknown = name == "pipeline" and 0 < len(value) < 256
            assert error.sqlstate == (UNKNOWN_PIPELINE if unknown else "22023")
            with pytest.raises(ValueError, match=r".+"):
                await by_request(db, **options)
    jobs, payloads, events = await count(observer)
    assert jobs == payloads == events == 2 * sum(is_taken for _, _, is_taken in CASES)


@pytest.mark.parametrize("name", ["queue", "submitted_by", "pipeline", "idempotency_key"])
async def test_texts_stay_texts(observer: Connection, name: str) -> None:
    hostile = "x'); drop table haulage.jobs; -- $1 %s \\ \" $enqueue$"
    if name in {"queue", "submitted_by"}:
        job_id = await enqueue(observer, {}, **{name: hostile})
        query = f"select {name} from haulage.jobs where id = $1"  # noqa: S608
        assert await observer.fetchval(query, UUID(job_id)) == hostile
    else:
        error = await refusal(observer, {}, **{name: hostile})
        assert error.sqlstate in {"22023", UNKNOWN_PIPELINE}


@pytest.mark.parametrize("key", ["", " ", "a b", "ü", "a\n", "k" * (MAX_KEY_CHARACTERS + 1)])
async def test_a_key_that_no_request_could_have_is_refused(observer: Connection, key: str) -> None:
    error = await refusal(observer, {}, idempotency_key=key)
    assert (error.sqlstate, error.column_name) == ("22023", "idempotency_key")


@pytest.mark.parametrize(
    "instant", ["infinity", "-infinity", "10000-01-01 00:00:00+00", "0044-03-15 BC"]
)
async def test_an_instant_that_python_does_not_have_is_refused(
    observer: Connection, instant: str
) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
        await observer.fetchval(
            f"select haulage.enqueue('{{}}', run_at => timestamptz '{instant}')"
        )
    assert caught.value.column_name == "run_at"


async def test_two_starts_are_refused(db: PostgresJobsDB, observer: Connection) -> None:
    two: dict[str, Any] = {"run_at": INSTANT, "delay_seconds": 1.0}
    assert (await refusal(observer, {}, **two)).sqlstate == "22023"
    with pytest.raises(ValueError, match="not both"):
        await by_request(db, {}, **two)


async def test_a_list_of_lists_is_no_list_of_tags(observer: Connection) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match="tags"):
        await observer.fetchval("select haulage.enqueue('{}', tags => '{{a},{b}}')")


async def test_jsonb_itself_refuses_what_a_request_may_not_have(observer: Connection) -> None:
    for text in ('{"k": "\\u0000"}', '{"k": "\\ud800"}', '{"k": NaN}', '{"k": 1e}'):
        with pytest.raises(asyncpg.DataError):
            await observer.fetchval("select haulage.enqueue($1::text::jsonb)", text)


async def test_an_unknown_pipeline_is_told_with_the_known_ones(observer: Connection) -> None:
    error = await refusal(observer, {}, pipeline="nonsense")

    assert "no pipeline 'nonsense'" in str(error)
    assert ", ".join(sorted(REGISTRATIONS)) in str(error)


async def test_nothing_is_taken_before_a_service_was_started(observer: Connection) -> None:
    await observer.execute("delete from haulage.pipelines")

    error = await refusal(observer, {})

    assert error.sqlstate == UNKNOWN_PIPELINE
    assert "no default pipeline" in str(error)
    assert "none" in str(error)


async def test_a_dataset_that_is_not_there_is_refused(observer: Connection) -> None:
    error = await refusal(observer, {"dataset": {"id": DATASET}}, pipeline="reading")

    assert error.sqlstate == "23503"
    assert DATASET in str(error)


def test_the_rules_tell_the_figures_of_the_program() -> None:
    text = source("functions")
    for figure in (
        MAX_PAYLOAD_BYTES,
        MAX_METADATA_BYTES,
        LEAST_MEMORY_LIMIT_BYTES,
        MAX_MEMORY_LIMIT_BYTES,
        MAX_TIMEOUT_SECONDS,
        MAX_START_TIMEOUT_SECONDS,
        MAX_ATTEMPTS,
        MAX_JSON_DEPTH,
        MAX_KEY_CHARACTERS,
    ):
        assert f"{figure:.0f}" in text
