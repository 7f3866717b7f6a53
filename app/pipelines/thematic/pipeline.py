"""The thematic analysis as a pipeline: its stages in order, each a milestone and a checkpoint.

Importing this module is light; the stages and the libraries under them are imported by `run`.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from app.domain.errors import HaulageError
from app.pipelines.interface import PipelineContext
from app.pipelines.thematic.milestones import Milestones, Report
from app.pipelines.thematic.parameters import MAX_ANSWERS, parse_request

VERSION: Final = "1.0"
"""Of the recipe: a change that may change results raises it and makes checkpoints stale."""

STAGES: Final = {
    "load": 0.0,
    "prepare": 0.01,
    "embed": 0.03,
    "discover": 0.80,
    "name": 0.93,
    "quotes": 0.95,
    "insights": 0.97,
    "check": 0.98,
}
"""Stage -> the fraction of the job at which it begins, by measured time for 2,000 answers."""

_SINGLE_THREADED: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_Outcome = TypeVar("_Outcome")


class ThematicAnalysis:
    """Thousands of free-text answers in, themes with counts, quotes and insights out.

    Args:
        max_answers: more are refused.
        defaults: payload keys that a job may leave out, e.g. {"granularity": "coarse"}.
    """

    def __init__(
        self, *, max_answers: int = MAX_ANSWERS, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self._max_answers = max_answers
        self._defaults = dict(defaults or {})

    async def run(self, payload: Mapping[str, Any], context: PipelineContext) -> dict[str, Any]:
        """Analyse `payload["answers"]` and return a result of schema `themes/1`.

        The same payload gives the same result, `usage` aside, and a retried job goes on after the
        last stage that it has finished.

        Raises:
            ParameterError: something in the payload is unknown, missing or out of bounds.
            DatasetError: no row holds an answer.
            JobCancelledError: the job is to end.
        """
        request = parse_request({**self._defaults, **payload}, max_answers=self._max_answers)
        _pin_threads()
        # Here and not above: the numeric libraries read their thread count when first imported.
        try:
            from app.pipelines.thematic import (  # noqa: PLC0415
                discover,
                embed,
                insights,
                label,
                load,
                package,
                prepare,
                quotes,
            )
        except ModuleNotFoundError as error:
            raise HaulageError(f"install haulage[thematic]: {error.name} is missing") from error

        parameters = request.parameters
        milestones = Milestones(context, f"{VERSION}:{request.fingerprint}", STAGES)
        answers = await milestones.reach(
            "load",
            "reading the answers",
            lambda _: load.load(request, context, self._max_answers),
            load.Answers,
        )
        prepared = await milestones.reach(
            "prepare",
            "cleaning, masking, setting non-answers apart",
            _in_thread(lambda: prepare.prepare(answers, parameters.redact)),
            prepare.Prepared,
        )
        people = prepare.people(prepared)
        embedded = await milestones.reach(
            "embed",
            f"{len(prepared.texts):,} texts",
            lambda report: embed.embed(prepared.texts, parameters.embedding_backend, report),
            embed.Embedded,
        )
        found = await milestones.reach(
            "discover",
            "comparing all texts",
            lambda report: discover.discover(embedded, people, parameters, report),
            discover.Discovered,
        )
        labels = await milestones.reach(
            "name",
            f"{len(found.cohesion)} themes",
            _in_thread(lambda: label.label(prepared, people, found, load.asked(answers))),
            label.Labels,
        )
        chosen = await milestones.reach(
            "quotes",
            "choosing quotes",
            _in_thread(
                lambda: quotes.quotes(
                    answers, prepared, embedded, found, labels, parameters.quotes_per_theme
                )
            ),
            quotes.Quotes,
        )
        sentences = await milestones.reach(
            "insights",
            "writing insights",
            _in_thread(lambda: insights.insights(answers, prepared, found, labels, chosen)),
            insights.Insights,
        )
        result = await milestones.finish(
            "check",
            "checking counts, quotes and figures",
            _in_thread(
                lambda: package.package(
                    request,
                    VERSION,
                    answers=answers,
                    prepared=prepared,
                    embedded=embedded,
                    found=found,
                    labels=labels,
                    chosen=chosen,
                    sentences=sentences,
                )
            ),
        )
        result["usage"]["seconds_by_stage"] = milestones.seconds
        return result


def _in_thread(work: Callable[[], _Outcome]) -> Callable[[Report], Awaitable[_Outcome]]:
    """A stage of plain computing; the job's loop goes on reporting meanwhile."""

    def started(_report: Report) -> Awaitable[_Outcome]:
        return asyncio.to_thread(work)

    return started


def _pin_threads() -> None:
    """One thread per job: jobs run side by side, and sums keep their order from run to run."""
    for name in _SINGLE_THREADED:
        os.environ.setdefault(name, "1")
