"""What was accepted, and what became of it: jobs of every kind, their webhooks, and that there is nothing besides.

``Accounts`` posts as patient clients do, each request under an Idempotency-Key, so that the jobs in the ledger are exactly
those that were accepted. ``settle`` waits for the end of everything, and checks all of it.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from listener import hurry
from load import END_SECONDS, PASSING, QUERY, TERMINAL, Load, right_score
from stack import eventually

HURRY_SECONDS = 2
PAUSE_SECONDS = 0.2
POISONS = {"\x01crash": "item_crashes_engine", "\x01nan": "non_finite_score", "\x01OOM": "item_out_of_memory"}
OVERTAKEN = {"cancelled": "job_cancelled", "expired": "job_expired", "failed": "job_failed"}


def poison_of(item):
    """The error that the item must end with, if it is scored at all."""
    return next((error for mark, error in POISONS.items() if item.endswith(mark)), None)


@dataclass
class Account:
    """An accepted job: its items by their index, and whether somebody is to be told of its end."""

    items: dict[int, str]
    is_told: bool
    may_end: set[str] = field(default_factory=lambda: {"completed"})
    is_deleted: bool = False


class Accounts:
    """``url``: where ends are told, if they are. ``seconds``: how long whoever asks is patient."""

    def __init__(self, stack, url=None, *, seconds=END_SECONDS):
        self.stack, self.url, self.seconds = stack, url, seconds
        self.jobs = {}
        self.load = Load(stack)
        self.before = set(stack.job_ids())

    def submit(self, items, *, is_upload=False, is_told=True):
        """Post until it is accepted; the id of the job."""
        job = {"model": "fake", "query": QUERY, **({"webhook_url": self.url} if is_told and self.url else {})}
        if is_upload:
            body = b"\n".join(json.dumps(line).encode() for line in (job, *items))
            arguments = {"content": body, "headers": {"Content-Type": "application/x-ndjson"}}
        else:
            arguments = {"json": {**job, "items": items}, "headers": {}}
        arguments["headers"]["Idempotency-Key"] = uuid4().hex
        answer = self.ask("POST", "/v1/jobs", **arguments)
        assert answer.status_code == 202, answer.text
        job_id = answer.json()["id"]
        self.jobs[job_id] = Account(dict(enumerate(items)), is_told and self.url is not None)
        return job_id

    def submit_without_key(self, items):
        """Post a small job until it is accepted. Each try may have left a job, which is to end as the accepted one does."""
        before = set(self.stack.job_ids())
        job = {"model": "fake", "query": QUERY, "items": items, **({"webhook_url": self.url} if self.url else {})}
        answer = self.ask("POST", "/v1/jobs", json=job)
        assert answer.status_code == 202, answer.text
        found = set(self.stack.job_ids()) - before
        assert answer.json()["id"] in found
        self.jobs |= {job_id: Account(dict(enumerate(items)), self.url is not None) for job_id in found}

    def wait(self, job_id):
        """Look at the job until it has ended."""

        def ended():
            return self.ask("GET", f"/v1/jobs/{job_id}").json()["status"] in TERMINAL or time.sleep(PAUSE_SECONDS)

        eventually(ended, seconds=self.seconds, what="the job ends")

    def cancel(self, job_id):
        """Cancel a job that may have ended."""
        self.jobs[job_id].may_end = {"completed", "cancelled"}
        assert self.ask("POST", f"/v1/jobs/{job_id}/cancel").json()["status"] in TERMINAL

    def retry(self, job_id):
        """Retry what an ended job did not score. Its items end under their old indexes; None where nothing is to retry."""
        unscored = {line["index"] for line in self.load.results(job_id) if line["error"] is not None}
        answer = self.ask("POST", f"/v1/jobs/{job_id}/retry", headers={"Idempotency-Key": uuid4().hex})
        if not unscored:
            assert (answer.status_code, answer.json()["code"]) == (422, "nothing_to_retry")
            return None
        assert answer.status_code == 202, answer.text
        account = self.jobs[job_id]
        retry_id = answer.json()["id"]
        items = {index: account.items[index] for index in sorted(unscored)}
        self.jobs[retry_id] = Account(items, account.is_told)
        return retry_id

    def delete(self, job_id):
        """Delete an ended job; one that is gone already is what we want, too."""
        assert self.ask("DELETE", f"/v1/jobs/{job_id}").status_code in {204, 404}
        self.jobs[job_id].is_deleted = True

    def ask(self, method, path, **arguments):
        """Ask until the answer is not that it should be asked again."""

        def answered():
            with suppress(*PASSING):
                answer = self.stack.http.request(method, path, **arguments)
                if answer.status_code == 503 or "idempotency_key_in_use" in answer.text[:500]:
                    assert "Retry-After" in answer.headers, answer.text
                else:
                    return answer
            time.sleep(PAUSE_SECONDS)
            return None

        return eventually(answered, seconds=self.seconds, what=f"{method} {path} is answered")

    def settle(self, receiver=None):
        """Wait for every end, and find each item once and right, and each end told under one id."""
        living = [job_id for job_id, account in self.jobs.items() if not account.is_deleted]
        self.load.items = dict.fromkeys(living)
        self.load.until_ended(seconds=self.seconds)
        for job_id in living:
            self.check(job_id)
        self._check_that_there_is_nothing_besides()
        if receiver is not None:
            self.check_what_was_told(receiver)

    def num_items(self):
        return sum(len(account.items) for account in self.jobs.values())

    def check(self, job_id):
        """An ended job: each of its items once and right, counted and billed so."""
        account, job = self.jobs[job_id], self.load.job(job_id)
        assert job["status"] in account.may_end, job
        results = self.load.results(job_id)
        assert [line["index"] for line in results] == list(account.items), "each item once, in order"
        num_scored = 0
        for line in results:
            item = account.items[line["index"]]
            if line["error"] is None:
                num_scored += 1
                assert abs(line["score"] - right_score(item)) < 1e-6, (line, item)
                assert line["prompt_tokens"] == len((QUERY + item).encode())
            elif line["error"] == OVERTAKEN.get(job["status"]):
                assert line["prompt_tokens"] == 0, "nobody is billed for what was not scored"
            assert line["error"] in {poison_of(item), OVERTAKEN.get(job["status"])}, (line, item)
        counts = job["counts"]
        assert (counts["total"], counts["pending"], counts["succeeded"]) == (len(results), 0, num_scored)
        assert counts["failed"] + counts["cancelled"] == len(results) - num_scored
        assert job["usage"]["prompt_tokens"] == sum(line["prompt_tokens"] for line in results), "billed once"

    def _check_that_there_is_nothing_besides(self):
        """Bodies that broke off, and their failed jobs, are all that there may be besides what was accepted."""
        others = list(set(self.stack.job_ids()) - self.before - self.jobs.keys())
        query = "SELECT count(*) FROM jobs WHERE id = ANY(%(ids)s::uuid[]) AND finished_at IS NULL"
        eventually(
            lambda: self.stack.sql(query, ids=others) == [(0,)], seconds=self.seconds, what="broken uploads fail"
        )
        for job_id in others:
            state, error = self.load.end_of(job_id)
            assert (state, error) == ("failed", "upload_incomplete"), f"{job_id} is nobody's"
            assert self.stack.sql("SELECT 1 FROM results WHERE job_id = %(id)s", id=job_id) == []
        for table in ("chunks", "results"):
            stray = f"SELECT count(*) FROM {table} t WHERE NOT EXISTS (SELECT FROM jobs j WHERE j.id = t.job_id)"
            assert self.stack.sql(stray) == [(0,)], f"{table} of no job"

    def check_what_was_told(self, receiver):
        """Each end was told, under one id."""
        told = {job_id for job_id, account in self.jobs.items() if account.is_told and not account.is_deleted}
        query = "SELECT count(*) FROM deliveries WHERE job_id = ANY(%(ids)s::uuid[]) AND state = 'delivered'"
        next_hurry = 0.0

        def all_told():
            nonlocal next_hurry
            if time.monotonic() > next_hurry:
                hurry(self.stack)
                next_hurry = time.monotonic() + HURRY_SECONDS
            return self.stack.sql(query, ids=list(told)) == [(len(told),)]

        eventually(all_told, seconds=self.seconds, what=f"{len(told)} ends are told")
        rows = "SELECT count(*) FROM deliveries WHERE job_id = ANY(%(ids)s::uuid[])"
        assert self.stack.sql(rows, ids=list(told)) == [(len(told),)], "one event an end"
        ids_of = {}
        for webhook_id, job_id in list(receiver.told):
            ids_of.setdefault(job_id, set()).add(webhook_id)
        assert told <= ids_of.keys(), "the receiver has heard of each"
        assert all(len(ids) == 1 for ids in ids_of.values()), "one id an event, however often it is sent"
