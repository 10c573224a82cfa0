"""A thousand jobs that end at once, and a receiver that takes a second for each event."""

from __future__ import annotations

import pytest
from processes import running, wait_until
from receiver import ALLOWED, Receiver
from sqlalchemy import text

from core.states import JobState
from store import endings

NUM_JOBS = 1_000
ALL_SECONDS = 120


@pytest.mark.faults
def test_a_thousand_ends_at_once_are_told_within_two_minutes(submit, database, database_url, redis_url, tmp_path):
    receiver = Receiver(delay_seconds=1)
    settings = {"database_url": database_url, "redis_url": redis_url, **ALLOWED}
    with receiver.serving() as url:
        keys = [submit(["x"], webhook_url=url)[0] for _ in range(NUM_JOBS)]
        with running("scheduler", tmp_path, **settings), running("deliverer", tmp_path, **settings) as deliverer:
            deliverer.wait_for("deliverer ready")
            for key in keys:
                with database.begin() as connection:
                    endings.abort(connection, key.job_id, JobState.CANCELLED)

            def is_done():
                with database.begin() as connection:
                    states = connection.execute(text("SELECT count(*) FROM deliveries WHERE state = 'delivered'"))
                    return states.scalar_one() == NUM_JOBS

            wait_until(is_done, seconds=ALL_SECONDS, what="every delivery")
            assert deliverer.terminate() == 0
    assert len(receiver.got) == len({headers["webhook-id"] for headers, _ in receiver.got}) == NUM_JOBS
