"""A worker in this process: the real prompts, claims and saves, over an engine that is a rule of ids and works for any vocabulary."""

from __future__ import annotations

import base64
import json
import threading
import zlib
from contextlib import contextmanager
from uuid import UUID

import numpy as np
import redis
from api_limits import PREFIX

from core.chunks import ChunkKey
from core.queues import small_queue
from core.results import Evidence
from store import notices
from worker.ledger import Ledger
from worker.outcomes import Outcomes
from worker.score_chunk import Scorer, run_chunk


def logprob(ids, label_id):
    """What this engine says: a number from -9 to -1 that depends on every id before the label, and on the label."""
    return -1 - 8 * zlib.crc32(np.array([*ids, label_id], "<i4").tobytes()) / 2**32


class RuleOfIds:
    """The batcher's protocol. ``rule`` can be another one; ``prompts`` keeps the ids of every sequence seen."""

    def __init__(self):
        self.rule = logprob
        self.prompts = []

    def score(self, prompts, *, small):  # noqa: ARG002 - the protocol has it
        logprobs_BL = np.full(prompts.label_ids_BL.shape, np.nan, np.float32)
        ends = np.cumsum(prompts.lengths_B)
        for row, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            ids = prompts.token_ids_T[start:end].tolist()
            labels = [label for label in prompts.label_ids_BL[row].tolist() if label >= 0]
            self.prompts.append(ids)
            for place, label in enumerate(labels):
                seen = ids[: len(ids) - len(labels) + place + 1] if prompts.is_path_B[row] else ids
                logprobs_BL[row, place] = self.rule(seen, label)
        errors = ["non_finite_score" if np.isnan(logprobs_BL[row]).all() else None for row in range(len(ends))]
        return Outcomes(logprobs_BL, np.zeros(len(ends), np.int32), errors)


@contextmanager
def working(database, redis_url, card, tokenizer):
    """Take the hints of the model's small jobs and score them, until the block ends; the batcher."""
    batcher, stop, failures = RuleOfIds(), threading.Event(), []
    client = redis.Redis.from_url(redis_url)
    queue = PREFIX + small_queue(card.name)
    client.delete(queue)

    def announce(job_id):
        notices.announce(client, job_id, prefix=PREFIX)

    ledger = Ledger(database, "in-process", lease_seconds=30, announce=announce)
    scorer = Scorer(batcher, tokenizer, Evidence(card.revision, card.dtype, "rule/1"), card.max_tokens, 100)

    def run():
        while not stop.is_set():
            message = client.brpop([queue], timeout=0.1)
            if message is not None:
                (job_id, chunk_no), _, _ = json.loads(base64.b64decode(json.loads(message[1])["body"]))
                try:
                    run_chunk(ChunkKey(UUID(job_id), chunk_no), ledger, scorer)
                except Exception as error:  # noqa: BLE001 - later tests need a worker: what failed is raised at its end
                    failures.append(error)

    thread = threading.Thread(target=run, name="worker")
    thread.start()
    try:
        yield batcher
    finally:
        stop.set()
        thread.join(20)
        client.close()
    if failures:
        raise ExceptionGroup("chunks that could not be scored", failures)
