"""Harms that end the process, or keep it from ending; see `support.hostile`."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any


async def sys_exit(payload: Mapping[str, Any], context: Any) -> None:
    sys.exit(payload["code"])


async def exit_at_once(payload: Mapping[str, Any], context: Any) -> None:
    os._exit(payload["code"])


async def exit_in_a_thread(payload: Mapping[str, Any], context: Any) -> None:
    threading.Thread(target=os._exit, args=(5,)).start()
    await asyncio.sleep(600)


async def stray_exit(payload: Mapping[str, Any], context: Any) -> None:
    await asyncio.create_task(_leave())


async def _leave() -> None:
    sys.exit("enough")


async def stray_interrupt(payload: Mapping[str, Any], context: Any) -> None:
    asyncio.get_running_loop().call_soon(_interrupt)
    await asyncio.sleep(600)


def _interrupt() -> None:
    raise KeyboardInterrupt


async def abort(payload: Mapping[str, Any], context: Any) -> None:
    os.abort()


async def signal_itself(payload: Mapping[str, Any], context: Any) -> None:
    os.kill(os.getpid(), signal.Signals[payload["signal"]])
    await asyncio.sleep(600)


async def alarm(payload: Mapping[str, Any], context: Any) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    await asyncio.sleep(600)


async def segfault(payload: Mapping[str, Any], context: Any) -> None:
    ctypes.string_at(0)


async def become_another_program(payload: Mapping[str, Any], context: Any) -> None:
    os.execvp("true", ["true"])  # noqa: S606  as a shell script's last line does


async def block_in_c(payload: Mapping[str, Any], context: Any) -> None:
    # PyDLL keeps the interpreter's lock: no thread and no handler of this process runs meanwhile.
    ctypes.PyDLL(None).sleep(600)


async def swallow_sigterm(payload: Mapping[str, Any], context: Any) -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)
    await asyncio.sleep(600)


async def exit_by_sigterm(payload: Mapping[str, Any], context: Any) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    await context.progress(0.5, "waiting")
    await asyncio.sleep(600)


async def exit_in_the_middle_by_sigterm(payload: Mapping[str, Any], context: Any) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    await context.progress(0.5, "waiting")
    time.sleep(600)  # noqa: ASYNC251  the handler runs in here


async def exit_when_left(payload: Mapping[str, Any], context: Any) -> str:
    context.kept = asyncio.create_task(_exit_when_cancelled())
    await asyncio.sleep(0)
    return "done"


async def _exit_when_cancelled() -> None:
    try:
        await asyncio.sleep(600)
    finally:
        sys.exit(3)


async def cancel_by_sigterm(payload: Mapping[str, Any], context: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await context.progress(0.5, "waiting")
    await asyncio.sleep(600)


async def fail_by_sigterm(payload: Mapping[str, Any], context: Any) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await context.progress(0.5, "waiting")
    await told.wait()
    raise ValueError("interrupted in the middle")


async def leave_grandchildren(payload: Mapping[str, Any], context: Any) -> str:
    for _ in range(3):
        if os.fork() == 0:
            # A copy, in which no loop runs.
            subprocess.Popen(["sleep", "600"], start_new_session=True)  # noqa: ASYNC220
            time.sleep(600)  # noqa: ASYNC251
    return "done"


async def return_from_a_fork(payload: Mapping[str, Any], context: Any) -> str:
    child = os.fork()
    if child == 0:
        return "of the copy"
    os.waitpid(child, 0)  # noqa: ASYNC222  it ends at once
    await asyncio.sleep(0.1)
    await context.progress(0.5, "still connected")
    return "of the job"


async def raise_from_a_fork(payload: Mapping[str, Any], context: Any) -> str:
    child = os.fork()
    if child == 0:
        raise _error_of(payload)
    os.waitpid(child, 0)  # noqa: ASYNC222  it ends at once
    await context.progress(0.5, "still connected")
    return "of the job"


def _error_of(payload: Mapping[str, Any]) -> BaseException:
    return SystemExit(3) if payload.get("exits") else ValueError("of the copy")


async def leave_threads(payload: Mapping[str, Any], context: Any) -> str:
    lock = threading.Lock()
    with lock:
        for _ in range(20):
            threading.Thread(target=lock.acquire).start()
        threading.Thread(target=_lock_twice).start()
        deadlocked = threading.Lock()
        deadlocked.acquire()
        threading.Thread(target=deadlocked.acquire).start()
    return "done"


def _lock_twice() -> None:
    lock = threading.Lock()
    with lock, lock:
        pass


async def leave_busy_threads(payload: Mapping[str, Any], context: Any) -> str:
    for _ in range(3):
        threading.Thread(target=_spin).start()
    return "done"


def _spin() -> None:
    while True:
        pass


async def leave_tasks(payload: Mapping[str, Any], context: Any) -> str:
    context.kept = [asyncio.create_task(_cling()), asyncio.create_task(_block_later())]
    await asyncio.sleep(0)
    return "done"


async def _cling() -> None:
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(0.01)


async def _block_later() -> None:
    await asyncio.sleep(0.001)
    time.sleep(600)  # noqa: ASYNC251  that is what it is for


async def leave_endless_tasks(payload: Mapping[str, Any], context: Any) -> str:
    context.kept = [asyncio.create_task(_yield_for_ever()) for _ in range(3)]
    return "done"


async def _yield_for_ever() -> None:
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(0)
