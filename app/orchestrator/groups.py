"""A worker without a guard (not Linux): its process group is all of the job that can be reached."""

import contextlib
import os
import signal

from app.worker.descent import is_group_alive


def signal_group(pid: int, number: int) -> None:
    """Signal the group that a worker leads which has not ended, and the worker itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
    # A worker that was started a moment ago may not lead a group yet.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_group(pid: int, *, is_reaped: bool) -> bool:
    """SIGKILL for what is left of the group; whether anything was.

    Args:
        is_reaped: whether the status of the worker that led it has been taken. From then on a
            process with its id is a stranger, and there is none while the group has members.
    """
    if is_reaped and _exists(pid):
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
