"""The soak's own parts: its plan, its witnesses, its last line."""

import random
import re
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest
from soak.checker import Judgement, Recovery, judge
from soak.conductor import ROLES
from soak.fault_log import Fault, FaultKind, FaultLog, read_faults
from soak.invented import JOB, PACE, SECOND, history, job, second_run
from soak.pace import Pace, plan_faults, quick_pace, submissions
from soak.report import Soak, percentile, render
from soak.witness import What, Witness, read_runs

SUMMARY = r"\d+ jobs, \d+ faults, \d+ lost, \d+ doubled, recovery p50 [\d.]+ s p99 [\d.]+ s"


def chance(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  a plan to be repeated, no secret


@pytest.mark.parametrize(
    ("pace", "least", "total"), [(Pace(600), 10, 200), (Pace(120), 2, 45), (quick_pace(45), 1, 25)]
)
def test_a_plan_has_every_kind_often_enough_and_in_time(pace: Pace, least: int, total: int) -> None:
    plan = plan_faults(pace, chance(1))
    assert min(Counter(planned.kind for planned in plan)[kind] for kind in FaultKind) >= least
    assert len(plan) >= total
    assert all(a.at_seconds <= b.at_seconds for a, b in pairwise(plan))
    assert plan[-1].at_seconds < pace.seconds


def test_a_seed_repeats_the_plan_and_the_jobs() -> None:
    assert plan_faults(PACE, chance(5)) == plan_faults(PACE, chance(5))
    assert plan_faults(PACE, chance(5)) != plan_faults(PACE, chance(6))
    jobs = [list(islice(submissions(chance(5)), 100)) for _ in range(2)]
    assert jobs[0] == jobs[1]


def test_what_must_not_cost_a_lease_is_shorter_and_what_must_is_longer() -> None:
    for pace in (Pace(600), quick_pace(45)):
        assert pace.moment_seconds[1] + pace.heartbeat_seconds < pace.lease_seconds
        assert pace.past_lease_seconds[0] > pace.lease_seconds


def test_a_run_is_read_as_it_was_witnessed(tmp_path: Path) -> None:
    witness = Witness(str(tmp_path), JOB)
    for what, number in [(What.STARTED, 4711), (What.LOADED, 2), (What.TICK, 0), (What.SAVED, 3)]:
        witness.note(what, number)
    [run] = read_runs(tmp_path)[JOB]
    assert (run.id, run.pid, run.ended, run.child_last_seen) == (witness.run, 4711, None, None)
    assert run.loaded is not None
    assert run.loaded[1] == 2
    assert [step for _, step in run.saved] == [3]
    assert run.started <= run.loaded[0] <= run.last_seen
    witness.note(What.ENDED)
    witness.note(What.CHILD)
    [run] = read_runs(tmp_path)[JOB]
    assert run.ended == run.last_seen
    assert run.child_last_seen is not None
    assert run.child_last_seen >= run.ended


def test_faults_are_read_in_the_order_of_their_shots(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "faults")
    long = Fault(FaultKind.FREEZE_NODE, 1.0, 9.0, "node-1", node_pid=5)
    short = Fault(FaultKind.KILL_WORKER, 2.0, 2.0, "node-2", node_pid=6, pid=7)
    log.add(short)
    log.add(long)
    assert read_faults(tmp_path / "faults") == [long, short]


def soak(**changes: object) -> Soak:
    usual: dict[str, object] = {
        "pace": PACE,
        "seed": 1,
        "machine": "Linux",
        "roles": ROLES,
        "history": history(job()),
        "judgement": judge(history(job()), PACE),
        "incidents": [],
        "not_done": [FaultKind.KILL_GUARD],
        "drain_seconds": 1.0,
        "sent": 2,
        "refused": 1,
    }
    return Soak(**{**usual, **changes})  # type: ignore[arg-type]  # spelt out above


def test_the_last_line_is_the_summary() -> None:
    last = render(soak()).splitlines()[-1]
    assert re.fullmatch(SUMMARY, last)
    assert last == "1 jobs, 1 faults, 0 lost, 0 doubled, recovery p50 15.10 s p99 15.10 s"


def test_a_soak_passes_only_without_findings_and_incidents_and_in_time() -> None:
    assert soak().has_passed
    assert not soak(incidents=["node-1 ended by itself"]).has_passed
    late = Judgement([], [Recovery(FaultKind.KILL_MANAGER, JOB, PACE.recovery_seconds + 0.1)])
    assert not soak(judgement=late).has_passed
    spoilt = history(job(runs=[second_run()]))
    failed = soak(history=spoilt, judgement=judge(spoilt, PACE))
    assert not failed.has_passed
    report = render(failed)
    assert "names run 11-a, which nobody saw" in report
    assert f"run {SECOND} kept step 3" in report


def test_a_percentile_is_the_value_that_its_share_does_not_exceed() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([3.0], 0.5) == 3.0
    assert percentile(list(range(100)), 0.99) == 99
