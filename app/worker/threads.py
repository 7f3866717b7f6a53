"""Work beside the event loop, in threads that a pipeline can neither take away nor use up.

The loop's own executor is the pipeline's: it may fill it for ever, replace it or shut it down.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


async def in_thread(call: Callable[[], _T]) -> _T:
    """What `call` returns or raises; run here where no thread can be started."""
    future: Future[_T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  it belongs to who waits
            future.set_exception(error)

    try:
        threading.Thread(target=run, name="haulage-beside", daemon=True).start()
    except RuntimeError:  # a limit that the job has set itself
        return call()
    return await asyncio.wrap_future(future)
