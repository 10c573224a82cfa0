"""What batches need around a front end: a worker that scores their jobs when it is let, and OpenAI's own client."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from uuid import UUID

from in_process_worker import RuleOfIds
from openai import OpenAI

from core.chunks import ChunkKey
from core.results import Evidence
from store.tokenizer import tokenizer_for
from worker.ledger import Ledger
from worker.score_chunk import Scorer, run_chunk

SCORING = "/generative_scoring"
ENDED = ("completed", "failed", "expired", "cancelled")
PENDING = """
    SELECT c.job_id, c.chunk_no FROM chunks c JOIN jobs j ON j.id = c.job_id
     WHERE j.id IN (SELECT job_id FROM batch_jobs) AND j.model = %s AND j.state IN ('queued', 'running')
       AND c.state = 'pending' ORDER BY 1, 2 LIMIT 16
"""


def line(custom_id, body, *, url="/v1/rerank", **changes):
    """A line of a file."""
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body, **changes})


def rerank(number, **changes):
    """A body for ``/v1/rerank``."""
    return {"model": "fake", "query": f"q{number}", "documents": [f"a{number}", "b", f"c {number}"], **changes}


def scoring(custom_id, number, **changes):
    """A line for ``/generative_scoring``."""
    items = [f"a{number}", "b", f"c {number}"]
    body = {"model": "fake", "query": f"q{number}", "items": items, "label_token_ids": [65, 66], **changes}
    return line(custom_id, body, url=SCORING)


class Batches:
    """Makes batches by OpenAI's client and waits for them; the worker scores while ``is_working``."""

    def __init__(self, url, key="none"):
        self.openai = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)
        self.is_working = threading.Event()
        self.is_working.set()

    def upload(self, lines, **fields):
        """A file of these lines, each text or a value."""
        text = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
        return self.openai.files.create(file=("requests.jsonl", text.encode()), purpose="batch", **fields)

    def create(self, lines, *, endpoint="/v1/rerank", **fields):
        """A batch of these lines."""
        return self.openai.batches.create(
            input_file_id=self.upload(lines).id, endpoint=endpoint, completion_window="24h", **fields
        )

    def until(self, batch, *states, seconds=60):
        """The batch, once it is in one of the states."""
        until = time.monotonic() + seconds
        while (batch := self.openai.batches.retrieve(batch.id)).status not in states:
            assert time.monotonic() < until, f"the batch is {batch.status}, not {states}"
            time.sleep(0.05)
        return batch

    def run(self, lines, **fields):
        """The batch of these lines, ended."""
        return self.until(self.create(lines, **fields), *ENDED)

    def lines_of(self, file_id):
        """What is in a file of answers, line by line."""
        return [json.loads(text) for text in self.openai.files.content(file_id).text.splitlines()]


@contextmanager
def asking(url, key):
    """Batches of whoever has the key."""
    world = Batches(url, key)
    try:
        yield world
    finally:
        world.openai.close()


@contextmanager
def batching(url, database, card, *, tokenizer=None, batcher=None):
    """Batches whose jobs for the model are scored in a thread of this process."""
    world, stop, failures = Batches(url), threading.Event(), []
    scorer = Scorer(
        batcher or RuleOfIds(),
        tokenizer or tokenizer_for(card, None),
        Evidence(card.revision, card.dtype, "rule/1"),
        card.max_tokens,
        100,
    )
    ledger = Ledger(database, "batching", lease_seconds=30, announce=lambda _job_id: None)

    def run():
        while not stop.wait(0.02):
            if not world.is_working.is_set():
                continue
            with database.begin() as connection:
                pending = connection.exec_driver_sql(PENDING, (card.name,)).all()
            for job_id, chunk_no in pending:
                try:
                    run_chunk(ChunkKey(UUID(str(job_id)), chunk_no), ledger, scorer)
                except Exception as error:  # noqa: BLE001 - what failed is raised at the end
                    failures.append(error)

    thread = threading.Thread(target=run, name="batch worker")
    thread.start()
    try:
        yield world
    finally:
        stop.set()
        thread.join(20)
        world.openai.close()
    if failures:
        raise ExceptionGroup("chunks that could not be scored", failures)
