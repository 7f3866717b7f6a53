"""What services can run is told to the database at their start, or beside them when that waits."""

import time
from contextlib import ExitStack

import pytest
from support.service import wait_until
from support.sql import holding, rows, value
from system.conftest import Start
from system.stores import SQL

# It is told for haulage.enqueue, which only SQL has.
pytestmark = pytest.mark.needs(SQL)

# A start takes a second or two; a statement of ours waits for a lock up to 27 s.
MOST_SECONDS = 15.0
HELD = "update haulage.pipelines set takes_dataset = takes_dataset where name = 'demo-echo'"


@pytest.mark.parametrize("role", ["serve", "api", "worker"])
def test_a_service_starts_while_somebody_holds_a_row_and_tells_it_afterwards(
    start: Start, database_url: str, role: str
) -> None:
    rows(database_url, "insert into haulage.pipelines (name, max_attempts) values ('demo-echo', 9)")

    began = time.monotonic()
    with ExitStack() as stack:
        with holding(database_url, HELD):
            service = stack.enter_context(start(role))
            took = time.monotonic() - began
            # All of it or nothing.
            assert value(database_url, "select count(*) from haulage.pipelines") == 1
        wait_until(
            lambda: value(database_url, "select count(*) from haulage.pipelines") > 1,
            "the pipelines of the service",
        )
        found = value(
            database_url, "select max_attempts from haulage.pipelines where name = 'demo-echo'"
        )
        code = service.stop()

    assert took < MOST_SECONDS
    assert found is None
    assert code == 0
    log = service.log.read_text("utf-8")
    assert "pipelines.unannounced" in log
    assert "pipelines.announced" in log


def test_a_service_that_could_not_tell_yet_stops_at_once(start: Start, database_url: str) -> None:
    rows(database_url, "insert into haulage.pipelines (name) values ('demo-echo')")

    with holding(database_url, HELD), start("api") as service:
        assert service.stop() == 0
        assert value(database_url, "select count(*) from haulage.pipelines") == 1
