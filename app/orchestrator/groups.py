"""A worker without a guard (not Linux): its process group is all of the job that can be reached."""

import contextlib
import os
import signal
from multiprocessing.process import BaseProcess

from app.worker.descent import is_group_alive


def signal_group(process: BaseProcess, number: int) -> None:
    """Signal the group that the worker leads, and the worker itself."""
    pid = process.pid or 0
    if process.exitcode is not None and _exists(pid):
        return  # once it is reaped, the pid may be given to a stranger
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
    # A worker that was started a moment ago may not lead a group yet.
    if process.exitcode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_group(process: BaseProcess) -> bool:
    """SIGKILL for what is left of the group; whether anything was."""
    pid = process.pid or 0
    if process.exitcode is not None and _exists(pid):
        return False
    with contextlib.suppress(PermissionError):
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
    # Zombies of the group wait for a parent that we are not.
    return is_group_alive(pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
