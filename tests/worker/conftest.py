"""A worker's parts on a real ledger, with the fake engine in this process: no batcher, no Celery, no pipes."""

from __future__ import annotations

import zlib
from uuid import UUID

import numpy as np
import pytest

from core.chunks import ChunkKey, NewItem, cut
from core.jobs import JobParameters, NewJob
from core.results import Evidence
from store import jobs, results
from store.clients import DEFAULT_CLIENT_ID
from store.tokenizer import ByteTokenizer
from worker.batcher import Outcomes
from worker.engine.fake import FakeEngine, FakeTroubles
from worker.engine.options import EngineOptions
from worker.engine.protocol import Batch
from worker.ledger import Ledger
from worker.score_chunk import Scorer


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
def read_results(database, read_job):
    def read(job_id: UUID):
        with database.begin() as connection:
            return results.page(connection, read_job(job_id), position=0, limit=10_000).items

    return read
