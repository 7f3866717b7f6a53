"""What the exit code of a worker says about its attempt, purely."""

import signal
from typing import Final

from app.domain.jobs import Cause
from app.domain.lifecycle import Died, Interrupted, NotConnected, Outcome
from app.worker.entry import ExitCode

_FAILED_STEP: Final = {
    ExitCode.NO_LOGGING: "its logging could not be set up",
    ExitCode.NO_EVENT_LOOP: "it got no event loop",
    ExitCode.BROKEN: "an error while it ran or reported the job, see the service's log",
}

# Everything but SETTLED, after which there is nothing left to say.
OWN_EXIT_CODES: Final = frozenset(ExitCode) - {ExitCode.SETTLED}
_INTERRUPTED: Final = "the worker was ended by SIGTERM from outside, or from its own job"


def outcome_of_worker(code: ExitCode) -> Outcome | None:
    """What a worker means that ended itself by one of its own codes; None: the claim was lost."""
    match code:
        case ExitCode.CLAIM_LOST:
            return None
        case ExitCode.NOT_CONNECTED:
            return NotConnected("the worker could not connect to the database")
        case ExitCode.TERMINATED:
            return Interrupted(_INTERRUPTED)
        case _:
            description = f"worker failed by itself: {_FAILED_STEP[code]}"
            return Died(Cause.WORKER_BROKEN, description, exit_code=code)


def outcome_of_exit(code: int | None, *, is_out_of_memory: bool) -> Outcome:
    """What the end of a process means that did not end itself by a code of its own.

    Args:
        code: negative for the signal that ended it, None where nobody knows.
        is_out_of_memory: whether the system has killed for want of memory meanwhile.
    """
    match code:
        case None:
            return Died(Cause.WORKER_LOST, "worker is gone, its exit status is unknown")
        case int() if code == -signal.SIGTERM:
            return Interrupted(_INTERRUPTED)
        case int() if code == -signal.SIGKILL and is_out_of_memory:
            description = "worker was ended by SIGKILL: the system was out of memory"
            return Died(Cause.OUT_OF_MEMORY, description, signal=signal.SIGKILL)
        case int() if code < 0:
            return Died(Cause.SIGNAL, f"worker was ended by {_signal_name(-code)}", signal=-code)
        case ExitCode.SETTLED:
            description = "worker ended with exit code 0 without storing a result"
            return Died(Cause.EXIT_CODE, description, exit_code=0)
        case _:
            return Died(Cause.EXIT_CODE, f"worker ended with exit code {code}", exit_code=code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
