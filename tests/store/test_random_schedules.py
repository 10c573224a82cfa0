"""Any schedule of clients, workers, sweeps and deaths keeps the ledger's promises, and planted bugs are found."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from schedules import Schedules
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from core.errors import Refused
from store import chunks, endings, jobs, partitions, retries, saves, sweeps

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
        with connection.begin():
            for name in partitions.partitions(connection):  # planning for days that no job is of takes half of the time
                if name[-8:] > f"{datetime.now(UTC) + timedelta(days=1):%Y%m%d}":
                    connection.execute(text(f"DROP TABLE {name}"))

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


def sql(module, name, before, after):
    """A bug in a statement: ``before`` becomes ``after`` wherever it stands in it."""

    def plant(monkeypatch):
        statement = getattr(module, name)
        whole = getattr(statement, "text", statement)
        assert before in whole, f"{name} does not say {before!r} any more: plant the bug elsewhere"
        broken = whole.replace(before, after)
        monkeypatch.setattr(module, name, broken if statement is whole else text(broken))

    return plant


def never(module, name, value):
    """A function that was forgotten: it does nothing and says ``value``."""
    return lambda monkeypatch: monkeypatch.setattr(module, name, lambda *_, **__: value)


PLANTED = {
    "a save without the fence of the epoch": sql(saves, "_SAVE", "AND epoch = :epoch", ""),
    "a save without the fence of the owner": sql(saves, "_SAVE", "AND lease_owner = :owner", ""),
    "a save that deletes the inputs of failed items": sql(saves, "_SAVE", "AND :num_failed = 0", ""),
    "a save that counts a failed item as a success": sql(
        saves, "_SAVE", "won.num_items - :num_failed, :num_failed,", "won.num_items, CAST(:num_failed AS int) * 0,"
    ),
    "a save and end without the fence of the epoch": sql(saves, "_SAVE_AND_END", "AND epoch = :epoch", ""),
    "a save and end that counts usage twice": sql(
        saves, "_SAVE_AND_END", "prompt_tokens = s.prompt_tokens", "prompt_tokens = 2 * s.prompt_tokens"
    ),
    "a claim that ignores a living lease": sql(chunks, "_TAKE", "AND lease_until < now()", ""),
    "a claim that keeps the epoch": sql(chunks, "_TAKE", "epoch = epoch + 1,", "epoch = greatest(epoch, 1),"),
    "a claim of a job that still arrives": sql(
        chunks, "_TAKE", "state IN ('queued', 'running')", "state IN ('receiving', 'queued', 'running')"
    ),
    "a claim that never starts its job": sql(chunks, "_TAKE", "AND state = 'queued'", "AND state = 'none'"),
    "a renewal without the fence of the epoch": sql(chunks, "_RENEW", "AND c.epoch = held.epoch", ""),
    "a lease given back without the fence of the epoch": sql(chunks, "_RELEASE", "AND c.epoch = held.epoch", ""),
    "an end while chunks are open": sql(endings, "_COMPLETE", "state IN ('pending', 'leased')", "state = 'pending'"),
    "an end that counts usage twice": sql(
        endings, "_COMPLETE", "prompt_tokens = s.prompt_tokens", "prompt_tokens = 2 * s.prompt_tokens"
    ),
    "a cancel that leaves leased chunks open": sql(
        endings, "_DROP_CHUNKS", "state IN ('pending', 'leased')", "state = 'pending'"
    ),
    "a cancel that forgets what was saved": sql(endings, "_END", "FROM results WHERE", "FROM results WHERE false AND"),
    "an end without its delivery": never(endings, "follow_up", None),
    "a sweep that ends no job": never(sweeps, "end_finished", []),
    "a sweep that takes living leases": sql(sweeps, "_REOPEN", "AND lease_until < now()", ""),
    "a sweep that reopens no lease": never(sweeps, "reopen_expired_leases", 0),
    "a sweep that forgets no hint": never(sweeps, "forget_lost_hints", 0),
    "a sweep that fails no silent upload": never(sweeps, "fail_silent_uploads", []),
    "a retry that leaves out what was never scored": sql(retries, "_READ", "c.state = 'dropped' OR", ""),
    "a deletion that leaves results behind": lambda monkeypatch: monkeypatch.setattr(jobs, "delete", forgetful_delete),
}


def forgetful_delete(connection, job_id, *, client_id):
    deleted = connection.execute(
        text("DELETE FROM jobs WHERE id = :job_id AND finished_at IS NOT NULL AND client_id = :client_id"),
        {"job_id": job_id, "client_id": client_id},
    )
    return bool(deleted.rowcount)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(explore, monkeypatch, name):
    PLANTED[name](monkeypatch)
    with pytest.raises((AssertionError, KeyError, DBAPIError, Refused)):
        explore(
            max_examples=1_000,  # the first that finds it ends the search; on a busy machine locks change what is played
            stateful_step_count=40,
            derandomize=True,
            phases=[Phase.generate],
            report_multiple_bugs=False,
        )
