"""Work done aside: answers and errors come back as they are, and an end without one is told."""

import asyncio
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from support.mock_database import MockDatabase

from app.api import offloading as offloading_module
from app.api.offloading import BusyError, OffloadedError, Offloading, OutOfMemoryError
from app.db.interface import DBInterface
from app.domain.errors import DatasetError, HaulageError, InvalidJsonError, TooLargeError
from app.worker import isolation

ERRORS: dict[str, HaulageError] = {
    "message": DatasetError("line 3: no"),
    "fields": TooLargeError("a dataset", 11, 10),
    "pointer": InvalidJsonError("/a/0", "NUL"),
}


async def work(
    db: DBInterface,
    file: BinaryIO,
    *,
    what: str,
    begun: asyncio.Event | None = None,
    told: Path | None = None,
) -> Any:
    await db.ping()
    if begun is not None:
        begun.set()
    if what in ERRORS:
        raise ERRORS[what]
    if what == "bug":
        raise KeyError({"no": object()})
    if what == "eat":
        eaten = [bytearray(16 * 2**20) for _ in range(64)]
        return len(eaten)
    if what == "abort":
        print("memory allocation of 99 bytes failed", file=sys.stderr, flush=True)  # noqa: T201
        os.abort()
    if what == "exit":
        print("last words", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(3)
    if what == "print":
        print("this must not mix with the answer")  # noqa: T201
    if told is not None:
        _, name = tempfile.mkstemp()
        await asyncio.to_thread(told.write_text, name)
    if what == "hang":
        await asyncio.Event().wait()
    file.write(b"written aside")
    file.flush()
    if what == "score":
        return Path("/proc/self/oom_score_adj").read_text()  # noqa: ASYNC240  no disk
    return {"pid": os.getpid(), "what": what}


def offloading(*, in_process: bool = True, limit_seconds: float = 30.0) -> Offloading:
    return Offloading(
        MockDatabase(),
        MockDatabase if in_process else None,
        max_at_once=1,
        wait_seconds=0.05,
        limit_seconds=limit_seconds,
        memory_bytes=512 * 2**20,
    )


async def test_nothing_of_the_working_directory_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pickle", "json", "app"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryFile() as file:
        assert (await offloading().run(work, file, what="print"))["what"] == "print"


@pytest.mark.skipif(sys.platform != "linux", reason="a file of Linux")
async def test_memory_that_is_short_is_taken_from_it_first() -> None:
    with tempfile.TemporaryFile() as file:
        assert int(await offloading().run(work, file, what="score")) >= isolation._OOM_SCORE


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count less")
@pytest.mark.parametrize("what", ["eat", "abort"])
async def test_a_process_has_so_much_memory_and_no_more(what: str) -> None:
    """Neither what Python's own allocations say nor the word of a library that ends it is lost."""
    aside = offloading()
    with tempfile.TemporaryFile() as file:
        with pytest.raises(OutOfMemoryError):
            await aside.run(work, file, what=what)
        assert (await aside.run(work, file, what="x"))["what"] == "x"


async def test_an_answer_comes_back_and_the_file_is_shared() -> None:
    with tempfile.TemporaryFile() as file:
        for in_process in (True, False):
            told = await offloading(in_process=in_process).run(work, file, what="print")
            assert (told["pid"] != os.getpid()) == in_process
            file.seek(0)
            assert file.read() == b"written aside"
            file.seek(0)


@pytest.mark.parametrize("what", ERRORS)
async def test_an_error_comes_back_as_it_is(what: str) -> None:
    with tempfile.TemporaryFile() as file, pytest.raises(type(ERRORS[what])) as caught:
        await offloading().run(work, file, what=what)
    assert str(caught.value) == str(ERRORS[what])
    assert vars(caught.value) == vars(ERRORS[what])


@pytest.mark.parametrize(
    ("what", "words"), [("bug", "KeyError"), ("exit", "exit code 3 last words")]
)
async def test_an_error_of_ours_is_told_for_the_log(what: str, words: str) -> None:
    with tempfile.TemporaryFile() as file, pytest.raises(OffloadedError, match=words):
        await offloading().run(work, file, what=what)


@pytest.mark.parametrize("in_process", [True, False])
async def test_what_takes_too_long_is_given_up(in_process: bool) -> None:  # noqa: FBT001
    aside = offloading(in_process=in_process, limit_seconds=0.05)
    with tempfile.TemporaryFile() as file, pytest.raises(OffloadedError, match="not done in"):
        await aside.run(work, file, what="hang")


async def test_no_more_is_done_at_once_than_may_be() -> None:
    aside = offloading(in_process=False)
    with tempfile.TemporaryFile() as file:
        begun = asyncio.Event()
        first = asyncio.ensure_future(aside.run(work, file, what="hang", begun=begun))
        await begun.wait()
        with pytest.raises(BusyError):
            await aside.run(work, file, what="x")
        first.cancel()
        await asyncio.wait([first])
        assert (await aside.run(work, file, what="x"))["what"] == "x"


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """Where a process says the name of a temporary file of its own: who reads waits for it."""
    pipe = tmp_path / "told"
    os.mkfifo(pipe)
    return pipe


async def test_temporary_files_go_with_the_process(told: Path) -> None:
    with tempfile.TemporaryFile() as file:
        aside = asyncio.ensure_future(offloading().run(work, file, what="hang", told=told))
        left = Path(await asyncio.to_thread(told.read_text))
        assert await asyncio.to_thread(left.exists)
        aside.cancel()
        await asyncio.wait([aside])
    assert not await asyncio.to_thread(left.parent.exists)
    assert left.parent.parent == Path(tempfile.gettempdir())


def test_temporary_files_go_with_a_service_that_is_killed(told: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": offloading_module._python_path()}
    with tempfile.TemporaryFile() as file:
        arguments = {"what": "hang", "told": told}
        order = pickle.dumps((2**30, MockDatabase, work, file.fileno(), arguments))
        with subprocess.Popen(
            [sys.executable, "-m", offloading_module.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(file.fileno(),),
            env={**environment, "TMPDIR": str(folder)},
        ) as process:
            assert process.stdin is not None
            process.stdin.write(order)
            process.stdin.flush()
            assert Path(told.read_text()).parent == folder
            process.stdin.close()
            assert process.wait() == 1
    assert not folder.exists()
