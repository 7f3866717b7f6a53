"""From what a request says to what the store takes: checked, completed, with a fingerprint."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request

from app.api.problems import Problem
from app.api.schemas import EnqueueRequest
from app.db.ids import new_id
from app.domain.errors import DatasetNotFoundError, UnknownPipelineError
from app.domain.jobs import MAX_METADATA_BYTES, MAX_PAYLOAD_BYTES, JobOptions, Registration
from app.domain.json_values import dump_field
from app.domain.sharing import dataset_of
from app.domain.submissions import MAX_KEY_CHARACTERS, Submission, fingerprint

KEY_HEADER: Final = "Idempotency-Key"
REPLAYED_HEADER: Final = "Idempotency-Replayed"

# Bare, or as a structured field's string (RFC 9651); visible characters only in both.
KEY_PATTERN: Final = (
    rf"^(?:[!#-~][!-~]{{0,{MAX_KEY_CHARACTERS - 1}}}"
    rf'|"(?:[!#-\[\]-~]|\\["\\]){{1,{MAX_KEY_CHARACTERS}}}")$'
)
_KEY: Final = re.compile(KEY_PATTERN)
_ESCAPED: Final = re.compile(r"\\(.)")


class Intake:
    """Turns requests into submissions.

    Args:
        pipelines: by registered name; None accepts any.
        default_pipeline: for requests that name none.
    """

    def __init__(
        self, pipelines: Mapping[str, Registration] | None, default_pipeline: str | None
    ) -> None:
        self._pipelines = pipelines
        self._default_pipeline = default_pipeline

    def submission(
        self, request: EnqueueRequest, *, submitter: str = "", key: str | None = None
    ) -> Submission:
        """What is to be stored; large payloads take tens of milliseconds.

        A fingerprint is of what was asked for: defaults of a pipeline may change between two
        requests that are equal. It is there where a key is.

        Raises:
            UnknownPipelineError
            InvalidJsonError: with the pointer into the request.
            TooLargeError
        """
        payload = dump_field(request.payload, "payload", MAX_PAYLOAD_BYTES)
        options = self.options(request.options(), request.payload, submitter=submitter, key=key)
        return Submission(payload, self.with_dataset(options, request.payload))

    def with_dataset(self, options: JobOptions, payload: Mapping[str, Any]) -> JobOptions:
        """The options with the dataset that the payload names, where its pipeline takes one.

        Others may mean something else by that name.
        """
        registration = (self._pipelines or {}).get(options.pipeline or "")
        if registration is None or not declares(registration, "dataset"):
            return options
        return replace(options, dataset_id=dataset_of(payload))

    def options(
        self, asked: JobOptions, content: Any, *, submitter: str = "", key: str | None = None
    ) -> JobOptions:
        """What was asked for with its submitter, its key and what its pipeline says by default.

        Args:
            content: JSON that a repetition under the same key has to equal, beside the options.

        Raises:
            UnknownPipelineError
            InvalidJsonError: as of the metadata.
            TooLargeError
        """
        # Before the store looks at it on the event loop.
        dump_field(asked.metadata, "metadata", MAX_METADATA_BYTES)
        name = asked.pipeline or self._default_pipeline
        registration = None
        if self._pipelines is not None and name is not None:
            registration = self._pipelines.get(name)
            if registration is None:
                raise UnknownPipelineError(name, tuple(sorted(self._pipelines)))
        options = replace(asked, pipeline=name, submitted_by=submitter)
        if key is not None:
            options = replace(
                options,
                job_id=new_id(),
                idempotency_key=key,
                fingerprint=fingerprint(content, options),
            )
        return options if registration is None else registration.complete(options)


def declares(registration: Registration, name: str) -> bool:
    """Whether a pipeline's payload schema knows a property of this name."""
    properties = (registration.payload_schema or {}).get("properties")
    return isinstance(properties, Mapping) and name in properties


@contextmanager
def unknown_dataset(pointer: str = "/payload/dataset/id") -> Iterator[None]:
    """Tell as a problem of the request that its payload names a dataset that is not there."""
    try:
        yield
    except DatasetNotFoundError as error:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "unknown-dataset",
            str(error),
            errors=[(pointer, str(error))],
        ) from None


def submitter_of(http: Request) -> str:
    """In whose name the request is made, "" where nobody has to say so."""
    submitter: str = getattr(http.state, "submitter", "")
    return submitter


def key_of(http: Request) -> str | None:
    """The request's idempotency key; 400 where it is none."""
    given = http.headers.getlist(KEY_HEADER)
    if not given:
        return None
    if len(given) > 1 or not _KEY.fullmatch(given[0]):
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            "bad-idempotency-key",
            f"{KEY_HEADER}: one key of 1 to {MAX_KEY_CHARACTERS} visible ASCII characters, "
            "bare or in double quotes",
        )
    [key] = given
    return _ESCAPED.sub(r"\1", key[1:-1]) if key.startswith('"') else key
