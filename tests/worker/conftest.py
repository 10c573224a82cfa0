"""A worker's parts on a real ledger, with the fake engine in this process: no batcher, no Celery, no pipes."""

from __future__ import annotations

import threading
import zlib
from uuid import UUID

import numpy as np
import pytest
from receiver import LOCAL
from sqlalchemy import text

from core.chunks import ChunkKey, NewItem, cut
from core.errors import NotReady
from core.jobs import JobParameters, NewJob
from core.results import Evidence
from store import jobs, results
from store.clients import DEFAULT_CLIENT_ID
from store.tokenizer import ByteTokenizer
from worker.deliverer import Deliverer
from worker.engine.fake import FakeEngine, FakeTroubles
from worker.engine.options import EngineOptions
from worker.engine.protocol import Batch
from worker.ledger import Ledger
from worker.outcomes import Outcomes
from worker.score_chunk import Scorer, run_chunk


def crc32_score(prompt):
    """The score of the fake model for this prompt, text or bytes."""
    return zlib.crc32(prompt if isinstance(prompt, bytes) else prompt.encode()) / 2**32


class InProcess:
    """The batcher's protocol over a fake engine in this process: every chunk is one batch."""

    def __init__(self):
        self.engine = FakeEngine(EngineOptions(), FakeTroubles())
        self.asked = []  # (number of prompts, small) of each call
        self.before_scoring = lambda: None
        self.errors = {}

    def score(self, prompts, *, small):
        self.asked.append((len(prompts.lengths_B), small))
        self.before_scoring()
        shared_B = np.zeros(len(prompts.lengths_B), np.int32)
        batch = Batch(
            prompts.token_ids_T, prompts.lengths_B, prompts.label_ids_BL, shared_B, is_path_B=prompts.is_path_B
        )
        scores = self.engine.score(batch)
        errors = [self.errors.get(row) for row in range(len(prompts.lengths_B))]
        return Outcomes(scores.label_logprobs_BL, scores.cached_tokens_B, errors)


@pytest.fixture
def batcher():
    return InProcess()


@pytest.fixture
def make_scorer(batcher):
    def make(*, max_tokens=1_000, max_attempts=100):
        return Scorer(batcher, ByteTokenizer(), Evidence("1", "float32", "fake/1"), max_tokens, max_attempts)

    return make


@pytest.fixture
def announced():
    return []


@pytest.fixture
def make_ledger(database, announced):
    def make(owner="a"):
        return Ledger(database, owner, lease_seconds=30, announce=announced.append)

    return make


@pytest.fixture
def submit(database):
    """Post a job of these items, texts or ``NewItem``s; returns the keys of its chunks."""

    def post(items, *, chunk_items=1_000, webhook_url=None, **parameters):
        parameters = {"model": "fake", "query": "Q: ", "label_token_ids": [0, 1]} | parameters
        new = NewJob(DEFAULT_CLIENT_ID, JobParameters(**parameters), "none/1", webhook_url=webhook_url)
        items = [item if isinstance(item, NewItem) else NewItem(item) for item in items]
        with database.begin() as connection:
            chunks = list(cut(items, max_items=chunk_items))
            job_id = jobs.create(connection, new, chunks, small_lane_cap=64).job.id
        return [ChunkKey(job_id, chunk.chunk_no) for chunk in chunks]

    return post


@pytest.fixture
def read_job(database):
    def read(job_id: UUID):
        with database.begin() as connection:
            return jobs.get(connection, job_id, client_id=None)

    return read


@pytest.fixture
def chunk_row(database):
    """A chunk as it is now."""

    def read(key):
        with database.begin() as connection:
            query = text("SELECT * FROM chunks WHERE job_id = :job_id AND chunk_no = :chunk_no")
            return connection.execute(query, key._asdict()).one()

    return read


@pytest.fixture
def read_results(database, read_job):
    def read(job_id: UUID):
        with database.begin() as connection:
            return results.page(connection, read_job(job_id), position=0, limit=10_000).items

    return read


@pytest.fixture
def deliverer(database):
    return Deliverer(database, "d", timeout_seconds=2, secret="", rules=LOCAL, stopping=threading.Event())


@pytest.fixture
def end_a_job(submit, make_ledger, make_scorer, database):
    """A completed job with this webhook; returns its delivery's id."""

    def run(url):
        (key,) = submit(["x"], webhook_url=url)
        run_chunk(key, make_ledger(), make_scorer())
        with database.begin() as connection:
            query = text("SELECT id FROM deliveries WHERE job_id = :job_id")
            return connection.execute(query, {"job_id": key.job_id}).scalar_one()

    return run


@pytest.fixture
def make_due(database):
    def run():
        with database.begin() as connection:
            connection.execute(text("UPDATE deliveries SET next_attempt_at = now()"))

    return run


@pytest.fixture
def delivery_row(database):
    def read(delivery_id):
        with database.begin() as connection:
            query = text(
                "SELECT *, extract(epoch FROM next_attempt_at - now()) AS wait_seconds FROM deliveries WHERE id = :id"
            )
            return connection.execute(query, {"id": delivery_id}).one()

    return read


@pytest.fixture
def attempts(database):
    def read():
        with database.begin() as connection:
            return connection.execute(text("SELECT * FROM delivery_attempts ORDER BY attempt")).all()

    return read


@pytest.fixture
def away_twice(monkeypatch):
    """Have a function find Postgres away twice, and then do its work."""

    def patch(module, name):
        real, failures = getattr(module, name), iter([True, True, False])

        def function(*arguments, **options):
            if next(failures):
                raise NotReady("away")
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, function)

    return patch
