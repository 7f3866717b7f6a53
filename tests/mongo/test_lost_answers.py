"""Answers of MongoDB that never come back: what was done is done once, and told as done."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from contract.steps import claimed, complete, new_job, new_node
from support import mongo

from app.db.ids import new_id
from app.db.mongo.adapter import MongoJobsDB
from app.domain.jobs import JobOptions, JobStatus, LogLine, NodeInfo, Progress
from app.domain.keys import Scope
from app.domain.lifecycle import NodeLost, decide
from app.domain.sharing import PaidCall
from app.domain.submissions import Submission
from app.domain.webhooks import DeliveryStatus, TryEnded


class Proxy:
    """Forwards bytes; the answer to a command that is named in `unanswered` goes with its link."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._links: set[asyncio.Task[None]] = set()
        self.unanswered: list[bytes] = []
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        doomed: list[bytes] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ask(reader, server_writer, doomed))
                group.create_task(self._answer(server_reader, writer, doomed))
        finally:
            for end in (writer, server_writer):
                end.transport.abort()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: list[bytes]
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                for wanted in self.unanswered:
                    if wanted in data:
                        self.unanswered.remove(wanted)
                        doomed.append(wanted)
                        break
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: list[bytes]
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if doomed:
                    break
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@pytest.fixture
async def proxy(mongo_database_url: str) -> AsyncIterator[Proxy]:
    host, _, port = urlsplit(mongo_database_url).netloc.rpartition("@")[2].partition(":")
    proxy = Proxy(host, int(port.partition(",")[0] or 27017))
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def db(mongo_database_url: str, proxy: Proxy) -> AsyncIterator[MongoJobsDB]:
    parts = urlsplit(mongo_database_url)
    user, mark, _ = parts.netloc.rpartition("@")
    url = f"mongodb://{user}{mark}127.0.0.1:{proxy.port}{parts.path}?directConnection=true"
    db = MongoJobsDB(url, default_pipeline="by-default", notify=False)
    yield db
    await db.close()


@pytest.fixture
def documents(mongo_database_url: str) -> Iterator[Any]:
    with mongo.client(mongo_database_url) as opened:
        yield opened.get_default_database()


def about(command: str, collection: str) -> bytes:
    """How a command about a collection looks on its way."""
    size = len(collection) + 1
    return command.encode() + b"\0" + size.to_bytes(4, "little") + collection.encode() + b"\0"


COMMIT = b"commitTransaction\0"


async def _insert(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    options = JobOptions(job_id=new_id(), submitted_by="s", idempotency_key="k", fingerprint=b"f")
    proxy.unanswered = [COMMIT]
    assert await db.insert_pending_job({"a": 1}, options) == options.job_id
    assert documents["jobs"].count_documents({}) == 1
    assert documents["job_payloads"].count_documents({}) == 1


async def _insert_batch(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    keyed = JobOptions(submitted_by="s", idempotency_key="k", fingerprint=b"f")
    proxy.unanswered = [COMMIT]
    receipt = await db.insert_pending_jobs([Submission("{}"), Submission("{}", keyed)])
    assert receipt.replayed == frozenset()
    assert (await db.get_batch(receipt.id or "")).total == 2
    assert documents["jobs"].count_documents({}) == 2


async def _claim(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    node, job_id = await new_node(db), await new_job(db)
    proxy.unanswered = [about("findAndModify", "jobs")]
    job = await db.claim_next_pending_job(node)
    assert job is not None
    assert (job.id, job.claim_no, job.attempt) == (job_id, 1, 1)
    assert documents["jobs"].find_one()["last_event_id"] == 2


async def _claim_some(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    node, ids = await new_node(db), [await new_job(db) for _ in range(3)]
    proxy.unanswered = [about("update", "jobs")]
    jobs = await db.claim_pending_jobs(node, 5)
    assert [(job.id, job.claim_no, job.attempt) for job in jobs] == [(i, 1, 1) for i in ids]
    assert await db.count_running_jobs(node) == 3


async def _report(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    job = await claimed(db)
    proxy.unanswered = [about("findAndModify", "jobs")]
    await db.report_started(job.claim, 7)
    assert (await db.get_job(job.id)).pid == 7
    proxy.unanswered = [about("findAndModify", "jobs")]
    await db.report_progress(job.claim, Progress(0.5, "s"), is_milestone=True)
    assert [m.stage for m in await db.list_milestones(job.id)] == ["s"]


async def _log(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    job = await claimed(db)
    proxy.unanswered = [COMMIT]
    await db.append_logs(job.claim, [LogLine(1, 20, "log", "x", datetime.now(UTC))])
    assert len(await db.list_logs(job.id)) == 1


async def _save(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    job = await claimed(db)
    proxy.unanswered = [COMMIT, COMMIT]
    await db.save_checkpoint(job.claim, "s", "1")
    await db.save_call(job.claim, PaidCall("k", "1", "s", "m"))
    assert documents["job_checkpoints"].count_documents({}) == 1
    assert [usage.calls for usage in await db.list_usage(job.id)] == [1]


async def _finish(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    await db.insert_webhook("http://x", ["job.completed"], "secret")
    job = await claimed(db)
    proxy.unanswered = [COMMIT]
    assert await complete(db, job)
    assert documents["job_attempts"].count_documents({}) == 1
    assert documents["webhook_deliveries"].count_documents({}) == 1
    assert documents["jobs"].find_one()["last_event_id"] == 3


async def _rescue(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    job = await claimed(db)
    await db.deregister_node((await db.list_nodes(1))[0].id)
    [lost] = await db.list_lost_jobs(1)
    proxy.unanswered = [COMMIT]
    assert await db.rescue_job(job.claim, decide(NodeLost(lost.node_id), lost))
    assert (await db.get_job(job.id)).node_losses == 1


async def _wish(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    job_id = await new_job(db)
    proxy.unanswered = [COMMIT]
    assert await db.cancel_job(job_id) is JobStatus.CANCELLED
    proxy.unanswered = [COMMIT]
    await db.retry_job(job_id)
    assert documents["jobs"].find_one()["last_event_id"] == 3
    await db.cancel_job(job_id)
    proxy.unanswered = [COMMIT]
    await db.delete_job(job_id)
    assert documents["jobs"].count_documents({}) == 0


async def _prune(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    await complete(db, await claimed(db))
    documents["jobs"].update_many({}, {"$inc": {"finished_at": -60_000_000}})
    proxy.unanswered = [COMMIT]
    assert await db.prune_jobs(JobStatus.COMPLETED, 1.0, 10) == 1
    assert documents["deleted_jobs"].count_documents({}) == 1


async def _upload(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    proxy.unanswered = [about("insert", "dataset_rows"), about("update", "datasets")]
    rows = [[str(n)] for n in range(5)]
    dataset = await db.insert_dataset("a", ["c"], rows, sha256="0" * 64, detected={})
    assert [cells for _, cells in await db.list_dataset_rows(dataset.id, [0])] == rows
    assert documents["datasets"].count_documents({}) == 1


async def _node(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    info = NodeInfo(new_id(), "test", 1, 4, 60.0, "0")
    proxy.unanswered = [about("update", "nodes")]
    await db.register_node(info)
    proxy.unanswered = [about("update", "nodes")]
    assert await db.renew_node(info.id)
    assert documents["nodes"].count_documents({}) == 1


async def _key(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    proxy.unanswered = [about("findAndModify", "api_keys")]
    key = await db.insert_key("a", "secret", next(iter(Scope)))
    proxy.unanswered = [about("update", "api_keys")]
    assert await db.revoke_key(key.id)
    assert documents["api_keys"].count_documents({}) == 1


async def _rotate(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    hook = await db.insert_webhook("http://x", ["job.completed"], "secret")
    proxy.unanswered = [about("findAndModify", "webhooks")]
    rotation = await db.rotate_secret(hook.id, "another", 60.0)
    assert rotation is not None
    assert rotation.is_done
    [stored] = documents["webhooks"].find()
    assert [old["secret"] for old in stored["old_secrets"]] == ["secret"]


async def _deliver(db: MongoJobsDB, proxy: Proxy, documents: Any) -> None:
    await db.insert_webhook("http://x", ["job.completed"], "secret")
    await complete(db, await claimed(db))
    proxy.unanswered = [about("findAndModify", "webhook_deliveries")]
    [due] = await db.claim_deliveries(10, 5, {}, 30.0)
    assert due.attempt == 1
    proxy.unanswered = [about("update", "webhook_deliveries")]
    await db.give_back_try(due)
    [due] = await db.claim_deliveries(10, 5, {}, 30.0)
    assert due.attempt == 1
    proxy.unanswered = [about("update", "webhook_deliveries")]
    assert await db.end_try(due, TryEnded(DeliveryStatus.DELIVERED, 0.0, 200, None))


Story = Callable[[MongoJobsDB, Proxy, Any], Awaitable[None]]

STORIES: tuple[Story, ...] = (
    _insert,
    _insert_batch,
    _claim,
    _claim_some,
    _report,
    _log,
    _save,
    _finish,
    _rescue,
    _wish,
    _prune,
    _upload,
    _node,
    _key,
    _rotate,
    _deliver,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__.strip("_"))
async def test_a_write_whose_answer_is_lost_is_done_once_and_told_as_done(
    db: MongoJobsDB, proxy: Proxy, documents: Any, story: Story
) -> None:
    await story(db, proxy, documents)

    assert proxy.unanswered == []
