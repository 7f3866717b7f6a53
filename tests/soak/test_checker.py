"""The checker of the soak finds each loss and each doubling, and nothing where all is well."""

from dataclasses import replace

import pytest
from soak.checker import Finding, Wrong, judge
from soak.fault_log import Fault, FaultKind
from soak.history import JobHistory, LogLine, Stored
from soak.invented import (
    FIRST,
    JOB,
    PACE,
    SECOND,
    attempt,
    event,
    failed_job,
    fault,
    first_run,
    history,
    job,
    second_run,
)

FROZEN = fault(FaultKind.FREEZE_MANAGER, began=12.0, ended=30.0)
KILLED = attempt(1, outcome="failed", cause="signal", error_class="WorkerDied", ended_at=12.1)
DELIBERATE = attempt(1, outcome="failed", cause="exception", error_class="DeliberateError")


def findings(job: JobHistory, faults: list[Fault] | None = None) -> list[Finding]:
    return judge(history(job, faults=faults), PACE).findings


def kill(kind: FaultKind = FaultKind.KILL_WORKER, pid: int = 11) -> Fault:
    return fault(kind, pid=pid)


# -- nothing is found where nothing is wrong ----------------------------------------------------


def test_a_rerun_that_a_fault_explains_is_in_order() -> None:
    judgement = judge(history(job()), PACE)
    assert judgement.findings == []
    [recovery] = judgement.recoveries
    assert (recovery.kind, round(recovery.seconds, 3)) == (FaultKind.KILL_MANAGER, 15.1)


def test_a_killed_manager_explains_a_loss_however_late_its_last_renewal_was_done() -> None:
    # The statement waited in a backend that was frozen until 26.0.
    late = job(attempts=[attempt(1, heartbeat_at=26.0), attempt(2)])
    assert findings(late) == []


@pytest.mark.parametrize(
    ("name", "job", "faults"),
    [
        (
            "its process was killed and no attempt was left",
            failed_job(KILLED, max_attempts=1),
            [kill()],
        ),
        ("its guard was killed", failed_job(KILLED, max_attempts=1), [kill(FaultKind.KILL_GUARD)]),
        ("it fails on purpose", failed_job(DELIBERATE, max_attempts=1, fails=True), []),
        (
            "its manager slept while it went on",
            job(
                attempts=[attempt(1, ended_at=27.0), attempt(2)],
                runs=[first_run(last_seen=30.5, child_last_seen=30.5), second_run()],
            ),
            [FROZEN],
        ),
        (
            "its process was frozen when it had just ended",
            job(runs=[first_run(), second_run(last_seen=36.0, child_last_seen=36.0)]),
            [fault(), fault(FaultKind.FREEZE_WORKER, pid=22, began=29.95, ended=35.9)],
        ),
        (
            "the database was away for half of the lease",
            job(),
            [fault(FaultKind.CRASH_DATABASE, began=14.0, ended=22.0, node_pid=None)],
        ),
        (
            "its node was told to end",
            job(attempts=[attempt(1, outcome="released", cause="shutdown"), attempt(2)]),
            [fault(FaultKind.STOP_NODE, began=12.0, ended=26.0)],
        ),
        (
            "the answer to its claim got lost with the database",
            job(
                attempts=[
                    attempt(1, outcome="released", cause="shutdown", pid=None, ended_at=14.0),
                    attempt(2),
                ],
                events=job().events[:2] + job().events[4:],
                logs=job().logs[2:],
                runs=[second_run(loaded=(27.2, 0))],
            ),
            [fault(FaultKind.CRASH_DATABASE, ended=13.0, node_pid=None)],
        ),
        (
            "no process came up after the forkserver's end",
            job(attempts=[attempt(1, cause="start_failed", ended_at=12.5), attempt(2)]),
            [fault(FaultKind.KILL_FORKSERVER)],
        ),
    ],
)
def test_nothing_is_found_when(name: str, job: JobHistory, faults: list[Fault]) -> None:
    assert findings(job, faults) == [], name


# -- lost -----------------------------------------------------------------------------------------


def test_a_promised_job_that_is_not_there_is_lost() -> None:
    judgement = judge(history(job(), promises={JOB: 7, "job-2": 8}), PACE)
    assert [(f.wrong, f.job_id) for f in judgement.findings] == [(Wrong.LOST, "job-2")]
    assert judgement.count(Wrong.LOST) == 1


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (job(status="pending"), "still pending"),
        (job(status="running"), "still running"),
        (job(status="cancelled"), "cancelled"),
        (job(attempts=[attempt(1), attempt(2, ended_at=None, outcome=None)]), "never ended"),
        (job(result=None), "without a result"),
        (job(result=Stored(2, "33-c", 4, 29.9)), "no witness saw"),
        (job(runs=[first_run(), second_run(ended=None)]), "no witness saw"),
        (job(result=Stored(2, SECOND, 3, 29.9)), "3 steps of 4"),
        (job(fails=True), "though it fails on purpose"),
        (job(attempts=[attempt(1), attempt(2, outcome="failed")]), "without a completed attempt"),
        (job(runs=[first_run(), second_run(loaded=(27.2, 0))]), "step 0 where 2"),
        (job(checkpoint=Stored(2, SECOND, 3, 28.0)), "its checkpoint is step 3"),
        (failed_job(attempt(1)), "failed after 1 losses"),
        (failed_job(KILLED), "attempt 1 of 2"),
        (failed_job(KILLED, max_attempts=1), "no fault explains"),
        (failed_job(DELIBERATE, max_attempts=1), "no fault explains"),
        (failed_job(attempt(1), attempts=[], runs=[]), "without ever being claimed"),
    ],
)
def test_lost_is(job: JobHistory, words: str) -> None:
    found = [f.what for f in findings(job) if f.wrong is Wrong.LOST]
    assert any(words in what for what in found), found


def test_a_failure_is_lost_when_the_kill_hit_another_process() -> None:
    assert findings(failed_job(KILLED, max_attempts=1), [kill(pid=12)])


# -- doubled --------------------------------------------------------------------------------------

EVENTS = job().events
LOGS = job().logs


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (job(attempts=[attempt(1, outcome="completed"), attempt(2)]), "all completed"),
        (job(events=[*EVENTS, event(10, 2, "completed", 30.0)]), "ended 2 times"),
        (job(events=[*EVENTS, event(10, 1, "failed", 30.0)]), "nobody held the job"),
        (job(result=Stored(1, FIRST, 4, 29.9)), "stored by claim 1"),
        (job(result=Stored(2, FIRST, 4, 29.9)), "written by run 11-a of another claim"),
        (job(checkpoint=Stored(2, FIRST, 4, 28.9)), "written by run 11-a of another claim"),
        (job(checkpoint=Stored(1, FIRST, 4, 28.9)), "a checkpoint of claim 1"),
        (job(events=[*EVENTS[:7], event(8, 2, "step 3", 28.0, FIRST), *EVENTS[8:]]), "of another"),
        (job(events=[*EVENTS[:7], event(8, 1, "step 3", 28.0, FIRST), *EVENTS[8:]]), "accepted"),
        (job(events=[*EVENTS[:5], event(6, 1, "step 3", 27.0, FIRST), *EVENTS[5:]]), "nobody held"),
        (job(events=[*EVENTS[:3], event(4, 2, "running", 11.0), *EVENTS[4:]]), "began while 1"),
        (job(events=[*EVENTS[:7], replace(EVENTS[6], id=8), *EVENTS[8:]]), "is stored 2 times"),
        (job(logs=[*LOGS, replace(LOGS[3], id=5)]), "is stored 2 times"),
        (job(logs=[*LOGS, LogLine(5, 1, f"run {FIRST}", 28.0)]), "log line of claim 1 accepted"),
        (job(logs=[*LOGS[1:], replace(LOGS[0], id=5)]), "of an earlier claim"),
        (job(logs=[replace(LOGS[0], line=f"run {SECOND}"), *LOGS[1:]]), "run 22-b of another"),
        (job(runs=[first_run(last_seen=27.5), second_run()]), "at work 0.40 s after claim 2"),
        (job(runs=[first_run(pid=13), second_run()]), "belongs to no claim"),
        (
            job(runs=[first_run(), second_run(), second_run(id="22-c", started=28.5)]),
            "claim 2 ran 2 times",
        ),
        (
            job(runs=[first_run(), second_run(child_last_seen=33.5)]),
            "its grandchild of run 22-b lived 3.6 s",
        ),
        (
            job(runs=[first_run(), second_run(last_seen=33.5)]),
            "the job of run 22-b lived 3.6 s",
        ),
    ],
)
def test_doubled_is(job: JobHistory, words: str) -> None:
    found = [f.what for f in findings(job) if f.wrong is Wrong.DOUBLED]
    assert any(words in what for what in found), found


def test_a_submission_that_became_two_jobs_is_doubled() -> None:
    judgement = judge(history(job(), job(id="job-2")), PACE)
    assert judgement.count(Wrong.DOUBLED) == 2


@pytest.mark.parametrize(
    "fault",
    [
        fault(node_pid=200),  # another node
        fault(FaultKind.KILL_FORKSERVER),  # costs no lease
        fault(FaultKind.PAUSE_MANAGER, ended=13.0),  # too short for it
        fault(FaultKind.FREEZE_MANAGER, began=-8.0, ended=11.0),  # over before the last renewal
        fault(began=27.5, ended=27.5),  # afterwards
        fault(FaultKind.CRASH_DATABASE, ended=14.0, node_pid=None),  # too short as well
        kill(pid=12),  # another process
    ],
    ids=lambda fault: f"{fault.kind} from {fault.began} to {fault.ended} on {fault.node_pid}",
)
def test_a_rerun_is_doubled_when_the_fault_does_not_explain_it(fault: Fault) -> None:
    [found] = findings(job(), [fault])
    assert found.wrong is Wrong.DOUBLED
    assert "no fault explains" in found.what


def test_a_run_that_was_given_back_is_doubled_when_its_node_was_not_told_to_end() -> None:
    given_back = job(attempts=[attempt(1, outcome="released", cause="shutdown"), attempt(2)])
    crash = fault(FaultKind.CRASH_DATABASE, began=25.0, ended=26.5, node_pid=None)
    [found] = findings(given_back, [crash])
    assert "released (shutdown, NodeLost) of claim 1, which no fault explains" in found.what


def test_a_cause_of_another_kind_is_not_explained_by_a_lost_node() -> None:
    spoilt = job(attempts=[attempt(1, outcome="failed", cause="worker_broken"), attempt(2)])
    [found] = findings(spoilt)
    assert "failed (worker_broken, NodeLost)" in found.what


@pytest.mark.parametrize("late", [30.0 + PACE.lease_seconds + 0.1, 1_000.0])
def test_two_runs_at_once_are_doubled_when_the_node_is_awake_again_for_a_lease(late: float) -> None:
    spoilt = job(runs=[first_run(last_seen=late), second_run()])
    assert any("at work" in f.what for f in findings(spoilt, [FROZEN]))


def test_two_runs_at_once_are_doubled_when_only_the_other_node_was_frozen() -> None:
    spoilt = job(runs=[first_run(last_seen=29.0), second_run()])
    elsewhere = replace(FROZEN, node_pid=200)
    assert any("at work" in f.what for f in findings(spoilt, [fault(), elsewhere]))


# -- recovery -------------------------------------------------------------------------------------


def test_recovery_ends_with_the_verdict_when_the_retry_waits_on_purpose() -> None:
    retried = job(attempts=[KILLED, attempt(2)])
    [recovery] = judge(history(retried, faults=[kill()]), PACE).recoveries
    assert (recovery.kind, round(recovery.seconds, 3)) == (FaultKind.KILL_WORKER, 0.1)


def test_recovery_begins_with_the_claim_when_the_fault_came_before() -> None:
    late = attempt(1, cause="start_failed", started_at=13.0, ended_at=14.0)
    faults = [fault(FaultKind.KILL_FORKSERVER)]
    [recovery] = judge(history(job(attempts=[late, attempt(2)]), faults=faults), PACE).recoveries
    assert recovery.seconds == 1.0
