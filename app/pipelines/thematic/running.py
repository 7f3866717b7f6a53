"""One analysis on its way: what each stage is given, and what becomes of it without a model."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.pipelines.interface import PipelineContext
from app.pipelines.llm.asking import LLM, PROBE_STAGE
from app.pipelines.llm.budget import Cost as Foreseen
from app.pipelines.llm.opening import open_llm
from app.pipelines.thematic import (
    assign,
    codebook,
    counting,
    discover,
    embed,
    estimate,
    insights,
    label,
    load,
    name,
    outcomes,
    package,
    prepare,
    quotes,
    review,
    stance,
    wording,
)
from app.pipelines.thematic.asker import Asker, Sparing
from app.pipelines.thematic.assigned import Assignments
from app.pipelines.thematic.basis import shared_settings, stage_settings
from app.pipelines.thematic.endpoint import Endpoint
from app.pipelines.thematic.milestones import Basis, Cost, Milestones, Report
from app.pipelines.thematic.parameters import Request
from app.pipelines.thematic.prompts import Survey
from app.pipelines.thematic.reaching import place

_Outcome = TypeVar("_Outcome")


@dataclass(frozen=True, slots=True)
class _Material:
    """What the stages up to `discover` have made."""

    answers: load.Answers
    prepared: prepare.Prepared
    people: list[int]
    embedded: embed.Embedded
    codes: NDArray[np.float16]
    found: discover.Discovered
    survey: Survey


async def analyse(
    request: Request,
    context: PipelineContext,
    version: str,
    starts: Mapping[str, float],
    max_answers: int,
    own_server: str | None = None,
) -> dict[str, Any]:
    """Go through all stages and return the result.

    Args:
        own_server: the operator's; answers of another serve only the jobs that name it.
    """
    run = _Run(request, context, version, starts, max_answers, own_server)
    try:
        return await run.result()
    finally:
        await run.asker.close()


class _Run:
    def __init__(
        self,
        request: Request,
        context: PipelineContext,
        version: str,
        starts: Mapping[str, float],
        max_answers: int,
        own_server: str | None,
    ) -> None:
        self._request = request
        self._max_answers = max_answers
        self._own_server = own_server
        self._parameters = request.parameters
        self._context = context
        self._version = version
        self.asker = Asker(self._open, None if self._parameters.llm else "no LLM configured")
        self._milestones = Milestones(
            context,
            Basis(version, stage_settings(request), shared_settings(request)),
            starts,
            request.start_from,
            self.asker.cost,
        )

    def _open(self) -> LLM:
        if self._parameters.llm is None:
            raise AssertionError("asked without a model")
        server, own = self._parameters.llm.base_url, self._own_server
        is_own = own is not None and place(server) == place(own)
        return open_llm(
            self._parameters.llm,
            self._context,
            on_wait=self._milestones.note,
            apart="" if is_own else str(place(server) or server),
        )

    async def result(self) -> dict[str, Any]:
        """The stages in turn."""
        material = await self._material()
        found = material.found
        expected = estimate.estimate(material.prepared.texts, found, self._parameters)
        labels = await self._named(material, expected)
        reviewed = await self._reviewed(material, labels)
        material = replace(material, found=reviewed.found)
        labels = reviewed.labels
        assignments = await self._assigned(material, labels)
        chosen = await self._milestones.reach(
            "quotes",
            "choosing quotes",
            _in_thread(
                lambda: quotes.quotes(
                    material.answers,
                    material.prepared,
                    material.embedded,
                    material.found,
                    labels,
                    assignments,
                    self._parameters.quotes_per_theme,
                )
            ),
            quotes.Quotes,
        )
        stances = await self._stances(material, labels, assignments)
        sentences = await self._insights(material, labels, assignments, stances, chosen)
        costs = await self._costs()
        result = await self._milestones.finish(
            "check",
            "checking counts, quotes and figures",
            _in_thread(
                lambda: package.package(
                    self._request,
                    self._version,
                    outcomes.Outcomes(
                        answers=material.answers,
                        prepared=material.prepared,
                        people=material.people,
                        embedded=material.embedded,
                        reviewed=reviewed,
                        assignments=assignments,
                        chosen=chosen,
                        stances=stances,
                        sentences=sentences,
                        costs=costs,
                        expected=expected,
                    ),
                )
            ),
        )
        result["usage"]["seconds_by_stage"] = self._milestones.seconds
        result["warnings"] += estimate.warnings(
            material.prepared.texts, found, self._parameters, assignments
        )
        return result

    async def _costs(self) -> dict[str, Cost]:
        """By stage what the job has paid, in attempts that were broken off too."""
        costs = dict(self._milestones.costs)
        costs[PROBE_STAGE] = self.asker.cost(PROBE_STAGE)
        costs = {
            stage: replace(cost, llm_calls=0, prompt_tokens=0, completion_tokens=0, cost=0.0)
            for stage, cost in costs.items()
        }
        for paid in await self._context.load_usage():
            cost = costs.get(paid.stage, Cost())
            costs[paid.stage] = replace(
                cost,
                llm_calls=cost.llm_calls + paid.calls,
                prompt_tokens=cost.prompt_tokens + paid.prompt_tokens,
                completion_tokens=cost.completion_tokens + paid.completion_tokens,
                cost=cost.cost + paid.cost,
            )
        return costs

    async def _material(self) -> _Material:
        request, parameters, milestones = self._request, self._parameters, self._milestones
        answers = await milestones.reach(
            "load",
            "reading the answers",
            lambda _: load.load(request, self._context, self._max_answers),
            load.Answers,
        )
        prepared = await milestones.reach(
            "prepare",
            "cleaning, masking, setting non-answers apart",
            _in_thread(lambda: prepare.prepare(answers, parameters.redact)),
            prepare.Prepared,
        )
        people = prepare.people(prepared)
        code_texts, given = codebook.code_texts(parameters.codebook), parameters.embedding
        embedded = await milestones.reach(
            "embed",
            f"{len(prepared.texts):,} texts",
            lambda report: embed.embed(
                prepared.texts + code_texts,
                parameters.embedding_backend,
                report,
                None if given is None else Endpoint(given, self._context),
            ),
            embed.Embedded,
        )
        embedded, codes = codebook.divide(embedded, len(prepared.texts))
        found = await milestones.reach(
            "discover",
            "comparing all texts",
            lambda report: self._discovered(prepared, embedded, codes, people, report),
            discover.Discovered,
        )
        survey = Survey(load.asked(answers), parameters.context)
        return _Material(answers, prepared, people, embedded, codes, found, survey)

    async def _discovered(
        self,
        prepared: prepare.Prepared,
        embedded: embed.Embedded,
        codes: NDArray[np.float16],
        people: list[int],
        report: Report,
    ) -> discover.Discovered:
        if len(codes):
            return await asyncio.to_thread(codebook.given, embedded, codes)
        return await discover.discover(embedded, people, self._parameters, report, prepared.texts)

    async def _named(self, material: _Material, expected: Foreseen | None) -> label.Labels:
        themes = f"{len(material.found.cohesion)} themes"
        if expected is not None and self._parameters.llm is not None:
            themes += f"; {estimate.told(expected)} to come"
            if not estimate.is_held(expected, self._parameters.llm):
                themes += ", for which the budget will not do"

        async def work(report: Report) -> label.Labels:
            prepared, people, found = material.prepared, material.people, material.found
            if self._parameters.codebook:
                return await asyncio.to_thread(
                    codebook.labels, prepared, people, found, self._parameters.codebook
                )
            labels = await asyncio.to_thread(
                label.label, prepared, people, found, material.survey.question
            )
            if self._parameters.llm is None:
                return labels
            named = await name.name(
                Sparing(self.asker),
                prepared,
                material.embedded,
                found,
                labels,
                material.survey,
                report,
            )
            return replace(named, model=self._parameters.llm.model)

        labels = await self._milestones.reach(
            "name", themes, self._settled("name", work), label.Labels
        )
        self.asker.heed(labels.lost)
        return labels

    async def _reviewed(self, material: _Material, labels: label.Labels) -> review.Reviewed:
        async def work(_report: Report) -> review.Reviewed:
            if self._parameters.codebook or not self.asker.is_there:
                return review.unreviewed(material.found, labels)
            return await review.review(
                Sparing(self.asker),
                prepared=material.prepared,
                people=material.people,
                embedded=material.embedded,
                found=material.found,
                labels=labels,
                survey=material.survey,
                parameters=self._parameters,
            )

        reviewed = await self._milestones.reach(
            "review", "looking for doubles", self._settled("review", work), review.Reviewed
        )
        self.asker.heed(reviewed.lost)
        return reviewed

    async def _assigned(self, material: _Material, labels: label.Labels) -> Assignments:
        async def work(report: Report) -> Assignments:
            return await assign.assign(
                self.asker,
                prepared=material.prepared,
                people=material.people,
                embedded=material.embedded,
                codes=material.codes,
                found=material.found,
                labels=labels,
                survey=material.survey,
                parameters=self._parameters,
                report=report,
            )

        assignments = await self._milestones.reach(
            "assign",
            f"{len(material.prepared.texts):,} texts to {len(labels.names)} themes",
            self._settled("assign", work),
            Assignments,
        )
        self.asker.heed(assignments.lost)
        return assignments

    async def _stances(
        self, material: _Material, labels: label.Labels, assignments: Assignments
    ) -> stance.Stances:
        async def work(report: Report) -> stance.Stances:
            if not self._parameters.stance or self._parameters.llm is None:
                return stance.untold(assignments.of)
            return await stance.stance(
                self.asker,
                material.prepared,
                labels,
                assignments.of,
                material.survey,
                report,
                self._parameters,
            )

        stances = await self._milestones.reach(
            "stance",
            "how answers stand to their themes",
            self._settled("stance", work),
            stance.Stances,
        )
        self.asker.heed(stances.lost)
        return stances

    async def _insights(
        self,
        material: _Material,
        labels: label.Labels,
        assignments: Assignments,
        stances: stance.Stances,
        chosen: quotes.Quotes,
    ) -> insights.Insights:
        async def work(_report: Report) -> insights.Insights:
            counted = counting.tables(
                material.answers,
                material.prepared,
                assignments.of,
                len(labels.names),
                stances.of,
            )
            by_template = await asyncio.to_thread(
                insights.insights, material.answers, counted, labels, chosen
            )
            if not self.asker.is_there:
                return by_template
            more = insights.sizes(material.answers, counted, labels, chosen)
            return await wording.word(self.asker, by_template, more, material.survey)

        return await self._milestones.reach(
            "insights", "writing insights", self._settled("insights", work), insights.Insights
        )

    def _settled(
        self, stage: str, work: Callable[[Report], Awaitable[_Outcome]]
    ) -> Callable[[Report], Awaitable[_Outcome]]:
        """The stage's work, and what it found kept made known.

        Where the model is away for now the next attempt does it: what is kept stays without it.
        """

        async def settled(report: Report) -> _Outcome:
            outcome = await work(report)
            await self.asker.settle(stage)
            away = self.asker.away
            if away is not None and not self._context.is_last_attempt:
                self._context.retry_later(away.later_seconds or 0.0, f"the LLM is away: {away}")
            return outcome

        return settled


def _in_thread(work: Callable[[], _Outcome]) -> Callable[[Report], Awaitable[_Outcome]]:
    """A stage of plain computing; the job's loop goes on reporting meanwhile."""

    def started(_report: Report) -> Awaitable[_Outcome]:
        return asyncio.to_thread(work)

    return started
