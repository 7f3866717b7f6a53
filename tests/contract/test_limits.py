"""How many things a call is about at most, down to none of them."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from contract.steps import claimed, complete, new_job, new_node
from contract.stores import Store

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.following import LogCursor
from app.domain.jobs import JobStatus, LogLine
from app.domain.sharing import PaidCall

Call = Callable[[DBInterface, str, int], Awaitable[Any]]

LISTS: dict[str, Call] = {
    "list_lost_jobs": lambda db, _, n: db.list_lost_jobs(n),
    "list_logs": lambda db, job, n: db.list_logs(job, n),
    "list_attempts_after": lambda db, job, n: db.list_attempts_after(job, 0, n),
    "list_checkpoints": lambda db, job, n: db.list_checkpoints(job, "", n),
    "list_queues": lambda db, _, n: db.list_queues(n),
    "list_nodes": lambda db, _, n: db.list_nodes(n),
    "list_datasets": lambda db, _, n: db.list_datasets(n),
}
PRUNES: dict[str, Call] = {
    "prune_jobs": lambda db, _, n: db.prune_jobs(JobStatus.COMPLETED, 1.0, n),
    "prune_calls": lambda db, _, n: db.prune_calls(1.0, n),
    "prune_nodes": lambda db, _, n: db.prune_nodes(1.0, n),
    "prune_datasets": lambda db, _, n: db.prune_datasets(1.0, n),
    "prune_tombstones": lambda db, _, n: db.prune_tombstones(1.0, n),
}


@pytest.mark.parametrize("name", LISTS)
async def test_a_list_of_none_is_empty_and_one_of_one_is_not(
    store: Store, db: DBInterface, name: str
) -> None:
    job = await claimed(db)
    await db.append_logs(job.claim, [LogLine(1, 20, "log", "x", datetime.now(UTC))])
    await db.save_checkpoint(job.claim, "s", "1")
    [node] = await db.list_nodes(10)
    await store.end_lease(node.id)
    await new_job(db)
    await db.insert_dataset("a", ["c"], [["x"]], sha256="ab" * 32, detected={})

    assert await LISTS[name](db, job.id, 0) == []
    assert len(await LISTS[name](db, job.id, 1)) == 1


async def test_a_page_of_no_lines_and_no_rows_is_empty(db: DBInterface) -> None:
    job = await claimed(db)
    await db.append_logs(job.claim, [LogLine(1, 20, "log", "x", datetime.now(UTC))])
    dataset = await db.insert_dataset("a", ["c"], [["x"]], sha256="ab" * 32, detected={})

    [lines] = await db.list_lines([LogCursor(job.id, 0)], 0)
    assert (lines.lines, lines.after) == ((), 0)
    assert await db.list_dataset_json(dataset.id, 0) == []
    assert await db.list_deliveries(new_id(), 0) == []


@pytest.mark.parametrize("name", PRUNES)
async def test_retention_of_none_removes_nothing(store: Store, db: DBInterface, name: str) -> None:
    job = await claimed(db)
    await db.save_call(job.claim, PaidCall("ab" * 32, "1", "s", "m"))
    await complete(db, job)
    gone = await claimed(db)
    await complete(db, gone)
    await db.delete_job(gone.id)
    await db.insert_dataset("a", ["c"], [["x"]], sha256="ab" * 32, detected={})
    await store.age(job.id, 10_000)
    await store.age_all(10_000)

    assert await PRUNES[name](db, job.id, 0) == 0
    assert await PRUNES[name](db, job.id, 1) == 1


async def test_an_id_is_the_same_however_it_is_spelt(db: DBInterface) -> None:
    given = new_id()
    job_id = await new_job(db, job_id=given.upper())

    assert job_id == given
    assert (await db.get_job(given)).id == given
    assert (await db.get_job(given.upper())).id == given
    node = await new_node(db)
    [job] = await db.claim_pending_jobs(node.upper(), 1)
    assert job.id == given
    assert await db.count_running_jobs(node.upper()) == 1
    assert [running.id for running in await db.list_running_jobs(node.upper())] == [given]
    assert await db.renew_node(node.upper())
    await db.deregister_node(node.upper())
    assert not await db.renew_node(node)
