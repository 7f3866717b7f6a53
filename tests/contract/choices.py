"""What the stateful test chooses from: options, reports, outcomes, and what the model has by then.

All are small sets, so that a step often meets what an earlier one left, and sampled, so that the
sequences of the normal run do not depend on which modules Hypothesis finds constants in.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from contract.agreement import STAGES
from contract.model import Model, ModelNode, ModelRun
from contract.steps import RAISED
from hypothesis import strategies as st

from app.domain.jobs import DEFAULT_QUEUE, Cause, JobOptions, Progress
from app.domain.lifecycle import (
    Cancelled,
    Completed,
    Died,
    GaveUp,
    Interrupted,
    NodeLost,
    NotConnected,
    NothingToDo,
    NotStarted,
    Outcome,
    Overran,
    Released,
    RetryAsked,
    Unanswered,
)

_Choice = TypeVar("_Choice")

# Nothing that is scheduled becomes due by itself while a test runs.
DAY: Final = timedelta(days=1)
PAST: Final = datetime(2024, 1, 1, tzinfo=UTC)
FUTURE: Final = datetime(2100, 1, 1, tzinfo=UTC)

OUTCOMES: Final[tuple[Outcome, ...]] = (
    Completed('"done"'),
    RAISED,
    RetryAsked(0.0, RAISED.error),
    GaveUp(RAISED.error),
    NothingToDo("done already"),
    Died(Cause.SIGNAL, "ended by SIGKILL", signal=9),
    Died(Cause.EXIT_CODE, "exit code 70", exit_code=70),
    NotStarted("no memory"),
    NotConnected("no database"),
    Unanswered(),
    Interrupted("SIGTERM"),
    Overran(Cause.TIMED_OUT, "ran for too long"),
    Cancelled(),
    Released(),
    NodeLost("another"),
)

outcomes = st.sampled_from(OUTCOMES[:1] * 4 + OUTCOMES)
rescuers_outcomes = st.sampled_from([NodeLost("gone"), Cancelled(), Completed('"done"')])
job_options = st.builds(
    JobOptions,
    pipeline=st.sampled_from([None, "a", "b"]),
    queue=st.sampled_from([DEFAULT_QUEUE, DEFAULT_QUEUE, DEFAULT_QUEUE, "nightly"]),
    priority=st.sampled_from([0, 5, -1]),
    run_at=st.sampled_from([None, None, None, PAST, PAST + DAY, FUTURE]),
    delay_seconds=st.sampled_from([0.0, 0.0, 0.0, 0.0, DAY.total_seconds()]),
    max_attempts=st.sampled_from([None, 2, 3]),
)
reports = st.builds(
    Progress,
    fraction=st.sampled_from([0.0, 0.25, 0.5]),
    stage=st.sampled_from(STAGES),
    message=st.sampled_from([None, "half way"]),
)
known_pipelines = st.sampled_from([None, None, None, None, ("b", "by-default", "unknown"), ()])


def among(choose: Callable[[Model], Sequence[_Choice]]) -> st.SearchStrategy[_Choice]:
    """One of what the machine's model has at that moment, as it is called in the report."""
    return st.runner().flatmap(lambda machine: st.sampled_from(choose(machine.model)))


def weighted(choices: Sequence[_Choice], is_likely: Callable[[_Choice], bool]) -> list[_Choice]:
    """All of them, the likely ones six times."""
    return [choice for choice in choices for _ in range(6 if is_likely(choice) else 1)]


def _runs(model: Model) -> list[ModelRun]:
    """Holders and late writers, half of each, and a claim that nobody made."""
    holders = model.holders
    late = [run for run in model.runs if not model.holds(run)]
    unmade = [replace(run, claim_no=run.claim_no + 1) for run in holders[:1]]
    weight = max(1, len(late) // max(1, len(holders)))
    return holders * weight + late + unmade


def _nodes(model: Model) -> list[ModelNode]:
    return [*model.nodes, model.stranger]


some_run = among(_runs)
some_run_to_rescue = among(lambda model: weighted(_runs(model), lambda run: run in model.lost()))
some_job_to_cancel = among(lambda model: weighted(model.jobs, lambda job: job.owner is not None))
waiting_job = among(lambda model: model.scheduled)
some_job_to_retry = among(lambda model: weighted(model.jobs, lambda job: job.status.is_terminal))
some_node_to_end = among(
    lambda model: weighted(_nodes(model), lambda node: any(job.owner is node for job in model.jobs))
)
some_claimer = among(lambda model: weighted(_nodes(model), lambda node: node.is_alive))
some_node_to_renew = among(
    lambda model: weighted(_nodes(model), lambda node: node in model.expired)
)
