"""Any schedule of clients, workers, sweeps and deaths keeps the ledger's promises, and planted bugs are found."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from schedules import Schedules
from sqlalchemy import text

from store import chunks, endings, jobs, retries, sweeps

LOCK_TIMEOUT_MILLISECONDS = 5  # one thread plays all: a lock that is not free at once will not be
CALM = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
}


@pytest.fixture
def explore(database):
    """Run random schedules; raises what the first that breaks a promise raised."""
    with database.engine.connect() as connection, database.engine.connect() as other:
        for each in (connection, other):
            each.execute(text(f"SET lock_timeout = {LOCK_TIMEOUT_MILLISECONDS}"))
            each.commit()

        def explore(**profile):
            run_state_machine_as_test(
                lambda: Schedules(database, connection, other), settings=settings(**CALM, **profile)
            )

        yield explore


def test_no_schedule_of_a_hundred_loses_or_doubles_anything(explore):
    explore(max_examples=100, stateful_step_count=40, derandomize=True)


@pytest.mark.chaos
@pytest.mark.timeout(3_000)
def test_no_schedule_of_two_thousand_others_loses_or_doubles_anything(explore):
    explore(max_examples=2_000, stateful_step_count=60, print_blob=True)
