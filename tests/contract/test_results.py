"""Results: as they were stored, and parts of an analysis that the store cuts out."""

import json
from typing import Any

import pytest
from contract.steps import claimed, complete, new_job
from support.analysis import analysis

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.errors import JobNotFoundError
from app.domain.jobs import JobStatus
from app.domain.results import RESULT_PIECE_BYTES, PartPage, ResultState


async def completed(db: DBInterface, result: Any) -> str:
    """A job with this result."""
    job = await claimed(db)
    assert await complete(db, job, json.dumps(result))
    return job.id


def items(page: PartPage | None) -> Any:
    assert page is not None
    found = json.loads(page.items)
    assert len(found) == page.count
    return found


async def test_a_state_tells_which_result_there_is(db: DBInterface) -> None:
    waiting = await new_job(db)
    assert await db.get_result_state(waiting) == ResultState(JobStatus.PENDING, None)
    await db.cancel_job(waiting)
    job = await claimed(db)
    assert await db.get_result_state(job.id) == ResultState(JobStatus.RUNNING, None)
    await complete(db, job)
    assert await db.get_result_state(job.id) == ResultState(JobStatus.COMPLETED, 1)

    await db.retry_job(job.id)
    assert await db.get_result_state(job.id) == ResultState(JobStatus.PENDING, None)
    for unknown in (new_id(), "no id"):
        with pytest.raises(JobNotFoundError):
            await db.get_result_state(unknown)


@pytest.mark.parametrize("more", [-1, 0, 1, 3 * RESULT_PIECE_BYTES])
async def test_a_result_comes_in_pieces(db: DBInterface, more: int) -> None:
    text = "ü" * ((RESULT_PIECE_BYTES - 2) // 2 - 1) + "x" * (2 + more)
    job_id = await completed(db, text)

    pieces = await db.list_result_pieces(job_id)
    assert b"".join(pieces) == await db.get_result(job_id) == f'"{text}"'.encode()
    assert max(map(len, pieces)) == min(RESULT_PIECE_BYTES, RESULT_PIECE_BYTES + more)
    await db.retry_job(job_id)
    for unknown in (job_id, new_id(), "no id"):
        assert await db.list_result_pieces(unknown) == []


async def test_the_payload_of_a_job_comes_back(db: DBInterface) -> None:
    job_id = await new_job(db, {"answers": ["ä", 2**60]})

    assert json.loads(await db.get_payload(job_id)) == {"answers": ["ä", 2**60]}
    for unknown in (new_id(), "no id"):
        with pytest.raises(JobNotFoundError):
            await db.get_payload(unknown)


async def test_themes_come_without_where_each_row_went(db: DBInterface) -> None:
    result = analysis()
    job_id = await completed(db, result)

    told = json.loads(await db.get_result_themes(job_id) or "")

    assert told["themes"] == result["themes"]
    assert told.keys() == {
        "question",
        "labelling",
        "input",
        "themes",
        "other",
        "failed",
        "non_answers",
        "insights",
        "metrics",
        "warnings",
    }
    for name in ("question", "input", "insights", "metrics"):
        assert told[name] == result[name]
    assert told["other"] == {"responses": 1, "share": result["other"]["share"]}
    assert told["non_answers"].keys() == {"responses", "share", "rule"}


async def test_quotes_of_a_theme_come_by_pages(db: DBInterface) -> None:
    result = analysis()
    job_id = await completed(db, result)
    theme = result["themes"][0]

    first = await db.get_theme_quotes(job_id, "T01", 2)
    assert first is not None
    assert json.loads(first.theme) == {k: v for k, v in theme.items() if k != "quotes"}
    assert (items(first.quotes), first.quotes.has_more) == (theme["quotes"][:2], True)
    rest = await db.get_theme_quotes(job_id, "T01", 2, after=2)
    assert rest is not None
    assert (items(rest.quotes), rest.quotes.has_more) == (theme["quotes"][2:], False)
    beyond = await db.get_theme_quotes(job_id, "T01", 2, after=9)
    assert beyond is not None
    assert (items(beyond.quotes), beyond.quotes.has_more) == ([], False)
    sub = await db.get_theme_quotes(job_id, "T01.1", 200)
    assert sub is not None
    assert items(sub.quotes) == result["themes"][1]["quotes"]
    for unknown in ('T01" || true', "T99", "T01\x00", "\ud800", "", "ä"):
        assert await db.get_theme_quotes(job_id, unknown, 2) is None


async def test_assignments_come_by_pages(db: DBInterface) -> None:
    result = analysis()
    job_id = await completed(db, result)
    total = len(result["assignments"])

    seen: list[Any] = []
    while True:
        page = await db.list_assignments(job_id, 2, after=len(seen))
        seen += items(page)
        assert page is not None
        assert page.has_more == (len(seen) < total)
        if not page.has_more:
            break
    assert seen == result["assignments"]
    assert items(await db.list_assignments(job_id, 2, after=total)) == []


@pytest.mark.parametrize(
    "result",
    [
        None,
        "themes/1",
        [{"schema": "themes/1", "themes": [], "assignments": []}],
        {"schema": "themes/2", "themes": [{"id": "T01"}], "assignments": [1]},
        {"themes": [{"id": "T01", "quotes": []}], "assignments": [1]},
    ],
)
async def test_other_results_have_no_such_parts(db: DBInterface, result: Any) -> None:
    job_id = await completed(db, result)

    assert await db.get_result(job_id) == json.dumps(result).encode() or isinstance(
        result, dict | list
    )
    assert await db.get_result_themes(job_id) is None
    assert await db.get_theme_quotes(job_id, "T01", 1) is None
    assert await db.list_assignments(job_id, 1) is None


async def test_there_are_no_parts_where_there_is_no_result(db: DBInterface) -> None:
    job_id = await completed(db, analysis())
    await db.retry_job(job_id)

    for unknown in (job_id, new_id(), "no id"):
        assert await db.get_result_themes(unknown) is None
        assert await db.get_theme_quotes(unknown, "T01", 1) is None
        assert await db.list_assignments(unknown, 1) is None
