"""Jobs that were accepted, and the oracle: each of their items ends with exactly one result, the right one.

The fake model's rule is ``score == crc32(query + item) / 2**32``, so a lost, swapped, doubled or stale item shows.
"""

from __future__ import annotations

import json
import random
import time
import zlib
from contextlib import contextmanager, suppress

import httpx
from stack import eventually

QUERY = "Frage: welche Größe? "
WORDS = ("the", "größer", "naïve", "日本", "in", "zero", "for", "😀", "this")
SIZES = (3_000, 1_500, 200, 50, 1)  # bulk and small jobs: some 25 batches
END_SECONDS = 90
PASSING = (httpx.TransportError,)
TERMINAL = ("completed", "failed", "cancelled", "expired")


def make_items(num_items, *, seed=0):
    dice = random.Random(seed)
    return [f"{seed}/{number} " + " ".join(dice.choices(WORDS, k=dice.randint(1, 30))) for number in range(num_items)]


def right_score(item):
    return zlib.crc32((QUERY + item).encode()) / 2**32


class Load:
    """What was posted, by job id."""

    def __init__(self, stack):
        self.stack = stack
        self.items = {}

    def post(self, items, **fields):
        """Post once, whatever comes of it."""
        return self.stack.http.post("/v1/jobs", json={"model": "fake", "query": QUERY, "items": items, **fields})

    def submit(self, items, **fields):
        """Post until it is accepted, as a patient client does; the id of the job."""

        def accepted():
            with suppress(*PASSING):
                answer = self.post(items, **fields)
                if answer.status_code != 503:
                    assert answer.status_code == 202, answer.text
                    return answer.json()["id"]
                assert "Retry-After" in answer.headers
                time.sleep(0.2)
            return None

        job_id = eventually(accepted, seconds=END_SECONDS, what="a job is accepted")
        self.items[job_id] = items
        return job_id

    def call(self, method, path, **arguments):
        """Ask until the answer is not 503, as clients do."""

        def answered():
            with suppress(*PASSING):
                answer = self.stack.http.request(method, path, **arguments)
                assert answer.status_code != 503 or "Retry-After" in answer.headers
                return answer if answer.status_code != 503 else None
            return None

        return eventually(answered, seconds=END_SECONDS, what=f"{method} {path} is answered")

    def job(self, job_id):
        return self.call("GET", f"/v1/jobs/{job_id}").json()

    def num_saved(self):
        ((num,),) = self.stack.sql(
            "SELECT coalesce(sum(num_items), 0) FROM results WHERE job_id = ANY(%(ids)s)", ids=list(self.items)
        )
        return num

    def until(self, share):
        """Wait until that share of all items is saved, and not all of them are."""
        total = sum(map(len, self.items.values()))
        eventually(lambda: self.num_saved() >= share * total, seconds=END_SECONDS, what=f"{share:.0%} of {total} items")
        assert self.num_saved() < total, "too fast to be caught in the middle"

    def until_ended(self, *, seconds=END_SECONDS):
        query = "SELECT count(*) FROM jobs WHERE id = ANY(%(ids)s) AND finished_at IS NULL"
        eventually(lambda: self.stack.sql(query, ids=list(self.items)) == [(0,)], seconds=seconds, what="all jobs end")

    def end_of(self, job_id, *, seconds=30):
        """Wait for a job's end: its state and the code of its error."""
        query = "SELECT state, error ->> 'code' FROM jobs WHERE id = %(id)s AND finished_at IS NOT NULL"
        return eventually(lambda: self.stack.sql(query, id=job_id), seconds=seconds, what="the job ends")[0]

    def results(self, job_id):
        lines = self.call("GET", f"/v1/jobs/{job_id}/results", headers={"Accept": "application/x-ndjson"})
        assert lines.status_code == 200, lines.text
        return [json.loads(line) for line in lines.text.splitlines()]

    def check(self, job_id, *, status="completed", errors=None):
        """The job ended so, and its results are those of its items; ``errors``: by index, those that must fail."""
        items, errors, job = self.items[job_id], errors or {}, self.job(job_id)
        assert job["status"] == status
        results = self.results(job_id)
        assert [result["index"] for result in results] == list(range(len(items))), "each item once, in order"
        scored = [result for result in results if result["error"] is None]
        for result in scored:
            item = items[result["index"]]
            assert abs(result["score"] - right_score(item)) < 1e-6, (result, item)
            assert result["prompt_tokens"] == len((QUERY + item).encode())
        if status == "completed":
            assert {result["index"]: result["error"] for result in results if result["error"]} == errors
        counts = job["counts"]
        assert counts["total"] == len(items) == counts["succeeded"] + counts["failed"] + counts["cancelled"]
        assert (counts["pending"], counts["succeeded"]) == (0, len(scored))
        assert job["usage"]["prompt_tokens"] == sum(result["prompt_tokens"] for result in results), "billed once"
        ((num_rows, num_done),) = self.stack.sql(
            "SELECT (SELECT count(*) FROM results WHERE job_id = %(id)s),"
            " (SELECT count(*) FROM chunks WHERE job_id = %(id)s AND state = 'done')",
            id=job_id,
        )
        assert num_rows == num_done
        return job

    def check_all(self):
        for job_id in self.items:
            self.check(job_id)


@contextmanager
def load(stack, *sizes, seconds=END_SECONDS):
    """Jobs of these sizes; after the block all of them must end in time, whole and right."""
    jobs = Load(stack)
    for number, size in enumerate(sizes or SIZES):
        jobs.submit(make_items(size, seed=number))
    yield jobs
    jobs.until_ended(seconds=seconds)
    jobs.check_all()
