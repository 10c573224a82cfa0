"""The query by which Kubernetes makes workers counts what is queued, as the front end does."""

from __future__ import annotations

from pathlib import Path

import yaml
from sqlalchemy import text

from core.chunks import NewItem, cut
from core.jobs import JobParameters, NewJob
from store import backlog, jobs
from store.clients import DEFAULT_CLIENT_ID

KEDA = Path(__file__).parents[2] / "deploy" / "kubernetes" / "keda.yaml"


def test_it_is_the_tokens_of_open_chunks(database, claim, save):
    rule = next(found for found in yaml.safe_load_all(KEDA.read_text()) if found["kind"] == "ScaledObject")
    query = text(rule["spec"]["triggers"][0]["metadata"]["query"])
    new = NewJob(DEFAULT_CLIENT_ID, JobParameters("fake", "q", [0, 1]), "none/1")
    with database.begin() as connection:
        assert connection.execute(query).scalar_one() == 0
        items = [NewItem(f"{n:020}") for n in range(1_000)]
        job = jobs.create(connection, new, cut(items, max_items=100), small_lane_cap=64).job
    save(claim(job, 0))
    with database.begin() as connection:
        queued = backlog.backlog(connection).of_client(DEFAULT_CLIENT_ID)
        assert connection.execute(query).scalar_one() == queued.num_tokens == 6 * 900
