"""A worker hears of a small job while it is still on its way to the disk; its client is told nothing before it is there."""

from __future__ import annotations

import pytest

from core.errors import NotReady
from store import hints, jobs


@pytest.fixture
def steps(monkeypatch):
    """What the front end does after a commit, in its order."""
    found = []
    monkeypatch.setattr(hints, "publish", lambda _app, keys, **_: found.append(("hinted", len(keys))))
    monkeypatch.setattr(jobs, "wait_for_disk", lambda *_: found.append(("waited for the disk", 1)))
    return found


def test_the_hint_of_a_small_job_leaves_before_the_wait_for_the_disk(api, steps):
    assert api.post("/v1/jobs", json={"items": ["a"]}).status_code == 202
    assert steps == [("hinted", 1), ("waited for the disk", 1)]


@pytest.mark.parametrize(
    ("num_items", "headers", "num_hints"),
    [(1, {"Idempotency-Key": "waits for its own commit"}, 1), (300, {}, 0)],
    ids=["with a key", "for the scheduler"],
)
def test_any_other_job_is_on_the_disk_at_its_commit(api, steps, num_items, headers, num_hints):
    assert api.post("/v1/jobs", json={"items": ["a"] * num_items}, headers=headers).status_code == 202
    assert steps == [("hinted", num_hints)]


@pytest.mark.parametrize("prefer", ["", "wait=20"])
def test_a_job_of_which_nobody_knows_whether_it_is_on_the_disk_is_not_accepted(api, monkeypatch, prefer):
    def break_off(_database, _job_id):
        raise NotReady("Postgres is away")

    monkeypatch.setattr(jobs, "wait_for_disk", break_off)
    answer = api.post("/v1/jobs", json={"items": ["a"]}, headers={"Prefer": prefer})
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
