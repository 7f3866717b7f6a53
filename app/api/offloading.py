"""Work that would hold the interpreter's lock for too long, in a short-lived process of its own.

    request --order (pickle, on stdin)--> process: builds a database adapter, does the work
            <--answer (JSON, on stdout)--'         the file it reads or writes is inherited

A thread would not do: one call of the JSON or CSV reader keeps the lock until it is over, and the
event loop with it. The process also has a bound of memory of its own and gives all of it back, and
it can be killed: when the client goes, when time is up, and when the service ends, whatever it is
in the middle of. It watches its standard input, so it goes with the service even if that is killed.
What libraries write to temporary files of theirs is in a folder of the process, and goes with it.
"""

import asyncio
import json
import os
import pickle
import shutil
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final

from app.db.interface import DBFactory, DBInterface
from app.domain.errors import (
    DatabaseUnavailableError,
    DatasetError,
    ExportError,
    HaulageError,
    InvalidJsonError,
    JobNotFoundError,
    TooLargeError,
)
from app.worker.isolation import bound_memory, give_way, go_first

Work = Callable[..., Awaitable[Any]]
"""`await work(db, file, **arguments)` gives the answer, JSON; a function of a module."""

_ERRORS: Final[Mapping[str, Callable[..., HaulageError]]] = {
    error.__name__: error
    for error in (
        DatabaseUnavailableError,
        DatasetError,
        ExportError,
        InvalidJsonError,
        JobNotFoundError,
        TooLargeError,
    )
}
_LAST_WORDS_BYTES: Final = 8_000
# What Python and what Rust (the reader of workbooks) say last.
_OUT_OF_MEMORY: Final = ("MemoryError", "memory allocation of")


class BusyError(HaulageError):
    """As much of this kind is being done as may be at once; later there is room."""


class OffloadedError(HaulageError):
    """The process ended without an answer, or with an error that is ours; the text says how."""


class OutOfMemoryError(OffloadedError):
    """The work would take more memory than a process of this kind may have."""


class Offloading:
    """Does pieces of work aside, a bounded number at once.

    Args:
        db: for work that is done here, where there is no factory.
        db_factory: picklable; builds the adapter of each process. None does the work in this one,
            as far as possible in threads.
        max_at_once: processes.
        wait_seconds: how long work waits for its turn before it is refused.
        limit_seconds: how long it may take.
        memory_bytes: what each process may have.
    """

    def __init__(
        self,
        db: DBInterface,
        db_factory: DBFactory | None,
        *,
        max_at_once: int,
        wait_seconds: float,
        limit_seconds: float,
        memory_bytes: int,
    ) -> None:
        self._db = db
        self._db_factory = db_factory
        self._turns = asyncio.Semaphore(max_at_once)
        self._wait_seconds = wait_seconds
        self._limit_seconds = limit_seconds
        self._memory_bytes = memory_bytes

    async def run(self, work: Work, file: BinaryIO, **arguments: Any) -> Any:
        """What `work` answers; HaulageError as it raises it.

        Raises:
            BusyError: there was no turn for it in time.
            OutOfMemoryError: it takes more than it may.
            OffloadedError: it did not come to an end, in time or at all.
        """
        async with self._turn():
            try:
                async with asyncio.timeout(self._limit_seconds):
                    if self._db_factory is None:
                        return await work(self._db, file, **arguments)
                    order = pickle.dumps(
                        (self._memory_bytes, self._db_factory, work, file.fileno(), arguments)
                    )
                    # Empty in the end, unless the process was killed.
                    with TemporaryDirectory(
                        prefix="haulage-", ignore_cleanup_errors=True
                    ) as folder:
                        return await _in_process(order, file.fileno(), folder)
            except TimeoutError:
                raise OffloadedError(f"not done in {self._limit_seconds:.0f} s") from None

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await stack.enter_async_context(self._turns)
            except TimeoutError:
                raise BusyError("the service is busy with work of this kind") from None
            yield


async def _in_process(order: bytes, descriptor: int, folder: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # nothing of the working directory, where anybody may have put a module
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=(descriptor,),
        env={**os.environ, "PYTHONPATH": _python_path(), "TMPDIR": folder},
        start_new_session=True,
    )
    assert process.stdin is not None  # noqa: S101  asked for above
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    try:
        with suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(order)
            await process.stdin.drain()
        answer, said = await asyncio.gather(process.stdout.read(), process.stderr.read())
        exit_code = await process.wait()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.stdin.close()
        # At once after the signal, so also in a request that is being cancelled.
        await asyncio.shield(process.wait())
    if exit_code != 0 or not answer:
        last_words = said[-_LAST_WORDS_BYTES:].decode("utf-8", "replace")
        if any(words in last_words for words in _OUT_OF_MEMORY):
            raise OutOfMemoryError(last_words.strip())
        raise OffloadedError(f"the process ended with exit code {exit_code} {last_words}".strip())
    return await asyncio.to_thread(_told, answer)


def _python_path() -> str:
    """What modules are found by here, so that the process finds the same."""
    return os.pathsep.join(path or str(Path.cwd()) for path in sys.path)


def _told(answer: bytes) -> Any:
    told = json.loads(answer)
    if "answer" in told:
        return told["answer"]
    if told["error"] == MemoryError.__name__:
        raise OutOfMemoryError(told["traceback"])
    raised: Callable[..., HaulageError] | None = _ERRORS.get(told["error"])
    if raised is None:
        raise OffloadedError(told["traceback"])
    facts: Mapping[str, Any] = told["facts"]
    raise raised(**facts) if facts else raised(told["message"])


def _error(error: Exception) -> dict[str, Any]:
    """An error as JSON: its fields, which are the arguments that it is made of, or its message."""
    name = type(error).__name__
    facts = vars(error) if name in _ERRORS else {}
    return {
        "error": name,
        "facts": {key: value for key, value in facts.items() if not key.startswith("_")},
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error))[-_LAST_WORDS_BYTES:],
    }


def _main() -> None:
    """Do what standard input orders, say the answer on standard output, and end at once."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not mix with the answer
    memory_bytes, *order = pickle.load(sys.stdin.buffer)  # noqa: S301  our parent
    db_factory, work, descriptor, arguments = order
    threading.Thread(target=_end_with_parent, daemon=True).start()
    go_first()
    give_way()
    bound_memory(memory_bytes)

    async def do() -> Any:
        db: DBInterface = db_factory()
        try:
            with os.fdopen(descriptor, "r+b") as file:
                return await work(db, file, **arguments)
        finally:
            await db.close()

    try:
        told = {"answer": asyncio.run(do())}
    except Exception as error:  # noqa: BLE001  told to the parent, which raises it
        told = _error(error)
    answers.write(json.dumps(told).encode())
    answers.close()
    # Without the interpreter's end: a thread still waits for the parent's.
    os._exit(0)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)  # the folder that the parent made
    os._exit(1)


if __name__ == "__main__":
    _main()
