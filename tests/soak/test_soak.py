"""A short soak as part of the tests: each kind of fault at least once, nothing lost or doubled."""

import pytest
from soak.checker import Wrong
from soak.fault_log import FaultKind
from soak.pace import quick_pace
from soak.report import render
from soak.run import soak

SECONDS = 45.0
SEED = 20


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_nothing_is_lost_or_doubled_whatever_is_killed_or_frozen() -> None:
    found, folder = soak(quick_pace(SECONDS), SEED)
    report = render(found)
    assert found.judgement.count(Wrong.LOST) == 0, f"{report}\ntraces are kept in {folder}"
    assert found.judgement.count(Wrong.DOUBLED) == 0, f"{report}\ntraces are kept in {folder}"
    assert not found.incidents, report
    # A build whose jobs have no guards has one kind less to hit.
    missing = set(FaultKind) - {fault.kind for fault in found.history.faults}
    assert missing <= {FaultKind.KILL_GUARD}, report
    assert len(found.history.jobs) > SECONDS / 2, report
    assert report.splitlines()[-1] == found.summary
