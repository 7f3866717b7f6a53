"""The thematic analysis as a pipeline: its stages in order, each a milestone and a checkpoint.

Importing this module is light; the stages and the libraries under them are imported by `run`.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.domain.errors import HaulageError
from app.pipelines.interface import PipelineContext
from app.pipelines.thematic.parameters import MAX_ANSWERS, parse_request

VERSION: Final = "2.2"
"""Of the recipe: a change that may change results raises it and makes checkpoints stale."""

STAGES: Final = {
    "load": 0.0,
    "prepare": 0.01,
    "embed": 0.03,
    "discover": 0.80,
    "name": 0.92,
    "review": 0.935,
    "assign": 0.94,
    "quotes": 0.945,
    "stance": 0.96,
    "insights": 0.97,
    "check": 0.98,
}
"""Stage -> the fraction of the job at which it begins, by measured time for 2,000 answers."""

STAGES_WITH_LLM: Final = {
    "load": 0.0,
    "prepare": 0.005,
    "embed": 0.01,
    "discover": 0.15,
    "name": 0.18,
    "review": 0.35,
    "assign": 0.40,
    "quotes": 0.80,
    "stance": 0.81,
    "insights": 0.92,
    "check": 0.97,
}
"""The same where a model is asked: most of the time is its own."""

_SINGLE_THREADED: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class ThematicAnalysis:
    """Thousands of free-text answers in, themes with counts, quotes and insights out.

    Args:
        max_answers: more are refused.
        defaults: payload keys that a job may leave out, e.g. {"granularity": "coarse"}; those of
            "llm" and "embedding" are the operator's word on server, key, models, prices and bounds.
        llm_origins: further base URLs ("https://llm.example:8443/openai/v1") that a payload may
            name; one without a path stands for `/v1` there and below.
    """

    def __init__(
        self,
        *,
        max_answers: int = MAX_ANSWERS,
        defaults: Mapping[str, Any] | None = None,
        llm_origins: Sequence[str] = (),
    ) -> None:
        self._max_answers = max_answers
        self._defaults = dict(defaults or {})
        self._llm = self._defaults.pop("llm", None) or {}
        self._embedding = self._defaults.pop("embedding", None) or {}
        # What jobs get that say nothing; a server that is no default may be named by them.
        is_endpoint = self._embedding.get("backend") == "endpoint"
        given = ("backend", "base_url", "model") if is_endpoint else ("backend",)
        default = {name: self._embedding[name] for name in given if name in self._embedding}
        if default:
            self._defaults["embedding"] = default
        self._llm_origins = llm_origins

    async def run(self, payload: Mapping[str, Any], context: PipelineContext) -> dict[str, Any]:
        """Analyse `payload["answers"]` and return a result of schema `themes/1` as JSON.

        The same payload and answers of the model give the same result, `usage` aside; a retried
        job goes on after the last stage that it has finished and repeats no finished call.

        Raises:
            ParameterError: something in the payload is unknown, missing or out of bounds.
            DatasetError: no row holds an answer.
            JobCancelledError: the job is to end.
        """
        request = parse_request(
            {**self._defaults, **payload},
            max_answers=self._max_answers,
            llm=self._llm,
            llm_origins=self._llm_origins,
            embedding=self._embedding,
        )
        _pin_threads()
        # Here and not above: the numeric libraries read their thread count when first imported.
        try:
            from app.pipelines.thematic import running  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise HaulageError(f"install haulage[thematic]: {error.name} is missing") from error
        starts = STAGES if request.parameters.llm is None else STAGES_WITH_LLM
        own = self._llm.get("base_url")
        return await running.analyse(request, context, VERSION, starts, self._max_answers, own)


def _pin_threads() -> None:
    """One thread per job: jobs run side by side, and sums keep their order from run to run."""
    for name in _SINGLE_THREADED:
        os.environ.setdefault(name, "1")
