"""How each harm of `support.hostile` has to end: what is true, and no more.

A completed job gives what the harm gives back; of a failed one cause, error class and a part of
the message are known, and whether there is a traceback.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from support.harm_data import MIB

LIMIT_BYTES = 64 * MIB


@dataclass(frozen=True)
class Case:
    """A hostile job and its true end."""

    harm: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    status: str = "failed"
    cause: str | None = None
    error_class: str | None = None
    message: str = ""
    has_traceback: bool = False
    result: Any = None
    pipeline: str = "hostile"
    limits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For the list of tests."""
        details = " ".join(str(value)[:24] or "empty" for value in self.payload.values())
        return f"{self.pipeline if self.pipeline != 'hostile' else self.harm} {details}".strip()


def _completed(harm: str, result: Any = "done", /, **payload: Any) -> Case:
    return Case(harm, payload, "completed", result=result)


def _raised(harm: str, error_class: str, message: str = "", /, **payload: Any) -> Case:
    return Case(harm, payload, "failed", "exception", error_class, message, has_traceback=True)


def _refused(
    harm: str, message: str, error_class: str = "InvalidJsonError", /, **payload: Any
) -> Case:
    return Case(harm, payload, "failed", "result_refused", error_class, message, has_traceback=True)


def _exited(harm: str, code: int, /, **payload: Any) -> Case:
    message = f"worker ended with exit code {code}"
    return Case(harm, payload, "failed", "exit_code", "WorkerDied", message)


def _signalled(harm: str, name: str, /, **payload: Any) -> Case:
    return Case(harm, payload, "failed", "signal", "WorkerDied", f"worker was ended by {name}")


def _timed_out(harm: str, /, **payload: Any) -> Case:
    limits = {"timeout_seconds": 1}
    message = "the limit is 1 s"
    return Case(harm, payload, "failed", "timed_out", "LimitExceeded", message, limits=limits)


def _not_loaded(pipeline: str, message: str) -> Case:
    return Case(
        "echo", {}, "failed", "load_failed", "PipelineLoadError", message, True, pipeline=pipeline
    )


ENDINGS = [
    _raised("sys-exit", "SystemExit", "0", code=0),
    _raised("sys-exit", "SystemExit", "enough", code="enough"),
    _raised("sys-exit", "SystemExit", code=None),
    _exited("exit-at-once", 0, code=0),
    _exited("exit-at-once", 3, code=3),
    # What a worker of Haulage itself would say by these, its job may not.
    *(_exited("exit-at-once", code, code=code) for code in range(70, 76)),
    _exited("exit-at-once", 255, code=255),
    _exited("exit-in-a-thread", 5),
    _exited("become-another-program", 0),
    _raised("stray-exit", "SystemExit", "enough"),
    _raised("stray-interrupt", "KeyboardInterrupt"),
    _signalled("abort", "SIGABRT"),
    _signalled("segfault", "SIGSEGV"),
    _signalled("alarm", "SIGALRM"),
    *(
        _signalled("signal-itself", name, signal=name)
        for name in ("SIGKILL", "SIGINT", "SIGHUP", "SIGUSR1", "SIGXCPU")
    ),
    _timed_out("signal-itself", signal="SIGSTOP"),
    _timed_out("block-in-c"),
    _timed_out("swallow-sigterm"),
    _timed_out("exit-by-sigterm"),
    _timed_out("exit-in-the-middle-by-sigterm"),
    _timed_out("cancel-by-sigterm"),
    _timed_out("fail-by-sigterm"),
    _completed("leave-grandchildren"),
    _completed("return-from-a-fork", "of the job"),
    _completed("raise-from-a-fork", "of the job"),
    _completed("raise-from-a-fork", "of the job", exits=True),
    _completed("leave-threads"),
    _completed("leave-busy-threads"),
    _completed("leave-tasks"),
    _completed("leave-endless-tasks"),
    _raised("exit-when-left", "SystemExit", "3"),
]

ERRORS = [
    *(
        _raised("raise-it", error, "as the payload says", error=error)
        for error in (
            *("OwnBaseError", "KeyboardInterrupt", "GeneratorExit", "MemoryError"),
            *("StopAsyncIteration", "Nameless", "LyingError", "FalseError"),
        )
    ),
    _raised("raise-it", "RuntimeError", "coroutine raised StopIteration", error="StopIteration"),
    _raised(
        "raise-it", "UnprintableError", "__str__ raised RuntimeError", error="UnprintableError"
    ),
    _raised("raise-it", "ExitingError", "__str__ raised SystemExit", error="ExitingError"),
    _raised("raise-it", "OddTextError", "odd but said", error="OddTextError"),
    Case("cancelled-error", {}, "failed", "exception", "CancelledError", "cancelled itself"),
    Case("cancel-itself", {}, "failed", "exception", "CancelledError", "cancelled itself"),
    Case("cancel-everything", {}, "failed", "exception", "CancelledError", "cancelled itself"),
    _completed("cancel-the-others"),
    _raised("recurse", "RecursionError", "maximum recursion depth"),
    _raised("group", "ExceptionGroup", "2 sub-exceptions"),
    _raised("deep-group", "ExceptionGroup", "deeper"),
    _raised("chain-of-causes", "RuntimeError", "reason 999"),
    _raised("unprintable-cause", "ValueError", "because of another"),
    _raised("unprintable-note", "ValueError", "with a note"),
    Case(
        "choose-without-words",
        {"verb": "give_up"},
        "failed",
        "gave_up",
        "GiveUpError",
        "__str__ raised RuntimeError",
        has_traceback=True,
    ),
    Case(
        "choose-without-words",
        {"verb": "retry_later"},
        "failed",
        "retry_later",
        "RetryLaterError",
        "__str__ raised RuntimeError",
        has_traceback=True,
    ),
    Case(
        "choose-without-words",
        {"verb": "nothing_to_do"},
        "completed",
        "nothing_to_do",
        result={"nothing_to_do": "(its __str__ raised RuntimeError)"},
    ),
    _not_loaded("raises-at-once", "ValueError: no licence for this machine"),
    _not_loaded("exits-at-once", "SystemExit: 0"),
    _not_loaded("interrupts-at-once", "KeyboardInterrupt"),
    _not_loaded("unprintable-at-once", "UnprintableError: (its __str__ raised RuntimeError)"),
    _not_loaded("generator", "no `async def run"),
    _not_loaded("async-generator", "no `async def run"),
    _not_loaded("hands-on", "no `async def run"),
]

SURROUNDINGS = [
    _completed("move-out-of-its-group", ["PermissionError"] * 3),
    _completed("change-its-manners"),
    _completed("lower-limits", limit="RLIMIT_NOFILE", value=3),
    _completed("lower-limits", limit="RLIMIT_AS", value=1),
    _completed("lower-limits", limit="RLIMIT_NPROC", value=0),
    _completed("lower-limits", limit="RLIMIT_FSIZE", value=0),
    _raised("want-too-much-memory", "MemoryError"),
    _raised("use-up-memory", "MemoryError"),
    _completed("replace-streams"),
    _completed("close-streams"),
    Case("close-descriptors", {}, "failed", "worker_broken", "OSError", "descriptor", True),
    Case(
        "close-descriptors",
        {"waits": True},
        "failed",
        "worker_broken",
        "OSError",
        "descriptor",
        True,
    ),
    _completed("close-connections"),
    _completed("fill-executor"),
    _completed("shut-executor-down"),
    _completed("run-another-loop"),
    _raised("close-loop", "RuntimeError", "Cannot close a running event loop"),
    Case("stop-loop", {}, "failed", "worker_broken", "RuntimeError", "Event loop stopped", True),
    _completed("patch-sleep"),
    _completed("patch-clock", to=0),
    # Neither a loop nor a driver works without a clock: the log of the service has the traceback.
    Case(
        "patch-clock",
        {"to": None},
        "failed",
        "worker_broken",
        "WorkerDied",
        "an error while it ran or reported the job",
    ),
    _completed("shut-logging-down"),
    _completed("configure-logging"),
    _completed("lower-recursion-limit"),
    _completed("forget-modules"),
]

_VALUES: list[Any] = [{}, [], "", 0, False, None, -0.5, "ä\U0001f600", {"": {"": []}}, 2**70]

DATA = [
    *(_completed("give-back", value, value=value) for value in _VALUES),
    Case(
        "echo",
        payload := {"harm": "echo", "n": 2**53 + 1, "text": "</script>'; drop table", "e": [{}]},
        "completed",
        result=payload,
    ),
    *(
        _refused("result", message, kind=kind)
        for kind, message in {
            "bytes": "/: a value of type bytes is not JSON",
            "circle": "nested deeper than 100 levels",
            "coroutine": "/: a value of type coroutine is not JSON",
            "deep": "nested deeper than 100 levels",
            "infinite": "/: NaN and infinities are not JSON",
            "keys": "/: a key of type int is not a string",
            "nan": "/mean: NaN and infinities are not JSON",
            "nul": "/text: NUL characters cannot be stored",
            "set": "/of: a value of type set is not JSON",
            "surrogate": "/: lone surrogates cannot be stored",
        }.items()
    ),
    _raised("result", "SystemExit", "0", kind="odd"),
    _completed("large-result", None, bytes=LIMIT_BYTES),
    _refused(
        "large-result",
        f"result of {LIMIT_BYTES + 1} bytes exceeds the limit",
        "TooLargeError",
        bytes=LIMIT_BYTES + 1,
    ),
    _completed("checkpoint", LIMIT_BYTES, bytes=LIMIT_BYTES),
    _raised("checkpoint", "TooLargeError", "exceeds the limit", bytes=LIMIT_BYTES + 1),
    _completed("checkpoint-under", [1], stage="x" * 200),
    *(
        _raised("checkpoint-under", "CheckpointNameError", message, stage=stage, **more)
        for stage, message in (
            ("NUL", "NUL"),
            ("", "1 to 200 characters"),
            (201, "1 to 200 characters"),
            (10_000, "1 to 200 characters"),
        )
        for more in ({}, {"only loads": True})
    ),
    _completed("print-much"),
    _completed("log-much"),
    _completed("log-the-unprintable"),
    _completed("report-much", calls=10_000, stages=0),
    _completed("report-much", calls=3_000, stages=1_500),
    _completed("report-at-once"),
    _completed("report-oddly"),
]
