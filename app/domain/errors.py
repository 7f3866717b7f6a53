"""The exception tree. Each error carries its facts as fields; its message is built from them."""


class HaulageError(Exception):
    """Base of every error that Haulage raises on purpose."""


class ConfigurationError(HaulageError):
    """A setting is missing or wrong; the message names setting, value and remedy."""

    def __init__(self, setting: str, value: object, remedy: str) -> None:
        super().__init__(f"{setting}={value!r}: {remedy}")
        self.setting = setting
        self.value = value
        self.remedy = remedy


class DatabaseUnavailableError(HaulageError):
    """The database cannot be reached or did not answer in time; the same call may work later."""


class SearchTooLongError(HaulageError):
    """A search was ended before it had found its page; the same one would be ended again."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the search was ended after {seconds:g} s; narrow it by a time")
        self.seconds = seconds


class ServiceUnreachableError(HaulageError):
    """A running Haulage does not answer over HTTP."""


class SchemaMismatchError(HaulageError):
    """The database's schema is behind or ahead of this program.

    Attributes:
        found: the revision in the database, None where there is none.
        wanted: the revision that this program needs.
        remedy: the command that mends it.
    """

    def __init__(self, found: str | None, wanted: str, remedy: str) -> None:
        at = found or "none"
        super().__init__(f"the schema is at revision {at}, this program needs {wanted}: {remedy}")
        self.found = found
        self.wanted = wanted
        self.remedy = remedy


class SchemaInUseError(HaulageError):
    """Others have built on what a step of the schema would drop, such as a view on a view."""


class RoleError(HaulageError):
    """A role of the database is missing, has too many rights, or is not ours to change."""


class EmbeddedDatabaseError(HaulageError):
    """The bundled PostgreSQL cannot be started, reached or stopped; the message has the remedy."""


class JobNotFoundError(HaulageError):
    """No job has this id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id[:80]}")
        self.job_id = job_id


class BatchNotFoundError(HaulageError):
    """No job belongs to a batch with this id."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"no batch {batch_id}")
        self.batch_id = batch_id


class BatchPartlyDeletedError(HaulageError):
    """The key's batch was stored before and some of its jobs were deleted; nothing was stored."""

    def __init__(self, key: str, deleted: int) -> None:
        super().__init__(
            f"the batch of the idempotency key {key!r} was stored before, and {deleted} of its jobs"
            " were deleted since; to run it again, send it under another key"
        )
        self.key = key
        self.deleted = deleted


class IdempotencyKeyReusedError(HaulageError):
    """The key belongs to a job that was submitted with other content; nothing was stored.

    Attributes:
        job_id: the job that the key made.
        index: which of several submissions it was.
    """

    def __init__(self, key: str, job_id: str, index: int = 0) -> None:
        super().__init__(
            f"the idempotency key {key!r} was used for job {job_id} with other content"
        )
        self.key = key
        self.job_id = job_id
        self.index = index


class JobDeletedError(JobNotFoundError):
    """The job was deleted, by somebody or for its age."""


class NodeNotFoundError(HaulageError):
    """No node has this id."""

    def __init__(self, node_id: str) -> None:
        super().__init__(f"no node {node_id}")
        self.node_id = node_id


class NodeGoneError(HaulageError):
    """The node has stopped or is lost: a new boot is a new node."""

    def __init__(self, node_id: str, state: str) -> None:
        super().__init__(f"node {node_id} is {state} and does not come back under this id")
        self.node_id = node_id
        self.state = state


class QuotaExceededError(HaulageError):
    """A submitter would have more waiting than it may; nothing was changed.

    Attributes:
        violated: names of the caps.
    """

    def __init__(self, violated: tuple[str, ...]) -> None:
        super().__init__(f"too much of this key is waiting already: {', '.join(violated)}")
        self.violated = violated


class LeaseLostError(HaulageError):
    """The claim that a write belongs to is no longer the job's current one; nothing was changed."""

    def __init__(self, job_id: str, claim_no: int) -> None:
        super().__init__(f"claim {claim_no} of job {job_id} is not the running one any more")
        self.job_id = job_id
        self.claim_no = claim_no


class IllegalTransitionError(HaulageError):
    """This event may not happen to a job in this status."""

    def __init__(self, status: str, event: str) -> None:
        super().__init__(f"a job that is {status} cannot be {event}")
        self.status = status
        self.event = event


class InvalidJsonError(HaulageError):
    """A value that the database could not store unchanged.

    Attributes:
        pointer: RFC 6901 pointer to the offending place, "" for the whole document.
        reason: what is wrong there.
    """

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(f"{pointer or '/'}: {reason}")
        self.pointer = pointer
        self.reason = reason


class TooLargeError(HaulageError):
    """A payload, checkpoint or result exceeds its stated bound."""

    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"{what} of {size_bytes} bytes exceeds the limit of {limit_bytes} bytes")
        self.what = what
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class CheckpointNameError(HaulageError):
    """A checkpoint's stage is not a name that every store can keep."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a checkpoint's stage {reason}")
        self.reason = reason


class CallKeyError(HaulageError):
    """The key of a paid call is no sha256 in hexadecimal."""

    def __init__(self, key: str) -> None:
        super().__init__(f"a call's key has 64 hexadecimal digits, not {key[:80]!r}")
        self.key = key


class PipelineLoadError(HaulageError):
    """A pipeline's import path does not lead to a usable class."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"pipeline {target!r} cannot be loaded: {reason}")
        self.target = target
        self.reason = reason


class UnknownPipelineError(HaulageError):
    """No pipeline is registered under this name."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"no pipeline {name!r}; registered: {', '.join(known) or 'none'}")
        self.name = name
        self.known = known


class GiveUpError(HaulageError):
    """No further attempt of the job can help; `PipelineContext.give_up` and pipelines raise it."""


class DatasetError(GiveUpError):
    """A table of answers cannot be read or stored; the message says where and why."""


class DatasetNotFoundError(DatasetError):
    """No dataset has this id."""

    def __init__(self, dataset_id: str) -> None:
        super().__init__(f"no dataset {dataset_id}")
        self.dataset_id = dataset_id


class DatasetInUseError(HaulageError):
    """A dataset that a pending or running job names cannot be removed."""

    def __init__(self, dataset_id: str) -> None:
        super().__init__(f"dataset {dataset_id} is named by a job that has not ended")
        self.dataset_id = dataset_id


class ExportError(HaulageError):
    """A result cannot be written in the wished form; the message says why."""


class RetryLaterError(HaulageError):
    """Raised inside a pipeline by `PipelineContext.retry_later`: this attempt gives up for now."""

    def __init__(self, delay_seconds: float, reason: str) -> None:
        super().__init__(reason)
        self.delay_seconds = delay_seconds


class NothingToDoError(HaulageError):
    """Raised inside a pipeline by `PipelineContext.nothing_to_do`: the job is done as it is."""


class JobCancelledError(HaulageError):
    """Raised inside a pipeline by `PipelineContext.check_cancelled` when the job is to end."""
