"""Submitting: what goes in is stored once or not at all."""

from collections.abc import Sequence
from typing import Any, Protocol

from app.domain.jobs import JobOptions
from app.domain.submissions import Batch, BatchReceipt, Submission


class Submitting(Protocol):
    """Storing new jobs. See DBInterface for what holds for every method."""

    async def insert_pending_job(
        self, payload: dict[str, Any] | str, options: JobOptions | None = None
    ) -> str:
        """Store a new pending job durably and return its id, then wake schedulers if it is due.

        With an idempotency key the job is stored once for its submitter and key: whoever comes
        second, also at the same time, gets the first one's id. It waits for a rival that has not
        committed yet, and takes its place where that one rolls back.

        Args:
            payload: an object, or its JSON text (which the caller has checked).

        Raises:
            InvalidJsonError: the payload holds something that could not come back unchanged, or an
                option does (the pointer then begins with the option's name).
            TooLargeError: the payload exceeds MAX_PAYLOAD_BYTES, the metadata MAX_METADATA_BYTES.
            IdempotencyKeyReusedError: the key's job has another fingerprint.
            DatasetNotFoundError: the options name a dataset that is not there.

        A lost connection is retried under the same id, so the job exists once or not at all.
        Calls at the same time may be committed together; one that fails or is given up harms no
        other.
        """

    async def insert_pending_jobs(
        self, submissions: Sequence[Submission], *, key: str | None = None
    ) -> BatchReceipt:
        """Store several jobs as one batch, all or none, then wake schedulers if one is due.

        A job whose key made one before stays what it is, in the batch that it belongs to.

        Args:
            submissions: 1 to MAX_BATCH_ROWS, payloads of MAX_BATCH_BYTES in all.
            key: of the batch as a whole; the submissions then have keys after `part_key` and one
                fingerprint. It is theirs as long as one of the jobs is there, and all of them are
                found or none is stored.

        Raises as `insert_pending_job`; pointers and errors say which submission by its index.
            BatchPartlyDeletedError: the batch of this key was stored before and is not whole now.
        """

    async def find_submission(self, submitter: str, key: str, fingerprint: bytes) -> str | None:
        """The job that an idempotency key of a submitter has made; None where there is none.

        Raises:
            IdempotencyKeyReusedError: that job has another fingerprint.
        """

    async def get_batch(self, batch_id: str) -> Batch:
        """How many jobs of a batch are where; BatchNotFoundError."""
