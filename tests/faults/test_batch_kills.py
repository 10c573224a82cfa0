"""Batches whose front end or scheduler is killed, wherever they are: they end all the same, each line counted once."""

from __future__ import annotations

import json
import random
import time
import zlib

import pytest
from stack import Stack, eventually

SCORING = "/generative_scoring"
ENDED = ("completed", "failed", "expired", "cancelled")
WAIT_SECONDS = 120


@pytest.fixture(scope="module")
def _stack(tmp_path_factory):
    with Stack(tmp_path_factory.mktemp("batches"), RANKMILL_FAKE_DELAY="0") as stack:
        yield stack


@pytest.fixture
def stack(_stack):
    _stack.recover()
    return _stack


def body(number):
    return {
        "query": f"query {number}: ",
        "items": [f"item {number} {n}" for n in range(1 + number % 3)],
        "label_token_ids": [0, 1],
        "apply_softmax": number % 5 > 0,
    }


class Batch:
    """A batch of so many lines, some of which ask for what can't be done."""

    def __init__(self, stack, num_lines):
        self.stack, self.num_lines = stack, num_lines
        bodies = [{} if number % 100 == 99 else body(number) for number in range(num_lines)]
        lines = [
            json.dumps({"custom_id": str(number), "method": "POST", "url": SCORING, "body": each})
            for number, each in enumerate(bodies)
        ]
        self.num_bad = bodies.count({})
        form = {"files": {"file": ("a.jsonl", "\n".join(lines).encode())}, "data": {"purpose": "batch"}}
        file_id = self.call("POST", "/v1/files", **form)["id"]
        asked = {"input_file_id": file_id, "endpoint": SCORING, "completion_window": "24h"}
        self.name = self.call("POST", "/v1/batches", json=asked)["id"]
        self.id = self.name.removeprefix("batch_")

    def call(self, method, path, **request):
        answer = self.stack.http.request(method, path, **request)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def row(self, column):
        """A column of its row, past the front end."""
        return self.stack.sql(f"SELECT {column} FROM batches WHERE id = %(id)s", id=self.id)[0][0]

    def num_parts(self):
        return self.stack.sql("SELECT count(*) FROM batch_parts WHERE batch_id = %(id)s", id=self.id)[0][0]

    def until_ended(self):
        eventually(lambda: self.row("state") in ENDED, seconds=WAIT_SECONDS, what="the batch has ended")
        return self.call("GET", f"/v1/batches/{self.name}")

    def lines(self, file_id):
        answer = self.stack.http.get(f"/v1/files/{file_id}/content")
        assert len(answer.content) == self.call("GET", f"/v1/files/{file_id}")["bytes"]
        return [json.loads(line) for line in answer.text.splitlines()]

    def check(self):
        """It is completed, and every line has its right answer in one of the files, in order."""
        batch = self.until_ended()
        num_good = self.num_lines - self.num_bad
        assert batch["status"] == "completed", batch
        assert batch["request_counts"] == {"total": self.num_lines, "completed": num_good, "failed": self.num_bad}
        output = self.lines(batch["output_file_id"])
        errors = self.lines(batch["error_file_id"]) if self.num_bad else []
        assert [int(line["custom_id"]) for line in output] == [n for n in range(self.num_lines) if n % 100 != 99]
        assert [int(line["custom_id"]) for line in errors] == [n for n in range(self.num_lines) if n % 100 == 99]
        num_tokens = 0
        for line in output:
            asked, answer = body(int(line["custom_id"])), line["response"]["body"]
            num_tokens += answer["usage"]["prompt_tokens"]
            prompts = [(asked["query"] + item).encode() for item in asked["items"]]
            scores = [each["score"] for each in answer["data"]]
            expected = [zlib.crc32(prompt) / 2**32 for prompt in prompts]
            assert scores == pytest.approx(expected, abs=1e-6)
        assert batch["usage"]["input_tokens"] == num_tokens
        jobs = self.stack.sql(
            "SELECT sum(num_succeeded), sum(prompt_tokens) FROM jobs WHERE id IN (SELECT job_id FROM batch_jobs"
            " WHERE batch_id = %(id)s)",
            id=self.id,
        )
        assert jobs == [(sum(len(body(int(line["custom_id"]))["items"]) for line in output), num_tokens)]


@pytest.mark.faults
def test_a_front_end_killed_while_it_validates_is_followed_by_another(stack):
    batch = Batch(stack, 2_500)
    eventually(batch.num_parts, seconds=WAIT_SECONDS, what="a part of the file is read")
    stack.kill("api")
    assert batch.row("state") == "validating"
    assert stack.sql("SELECT 1 FROM jobs WHERE state = 'receiving'")
    stack.start("api")
    eventually(stack.is_ready, seconds=WAIT_SECONDS, what="the front end is back")
    batch.check()
    assert stack.sql("SELECT 1 FROM jobs WHERE state = 'receiving'") == []


@pytest.mark.faults
def test_a_scheduler_killed_while_a_batch_runs_and_a_front_end_while_it_finalizes_strand_nothing(stack):
    batch = Batch(stack, 20_000)
    eventually(lambda: batch.row("state") != "validating", seconds=WAIT_SECONDS, what="the batch runs")
    stack.kill_and_start("scheduler")
    eventually(lambda: batch.row("state") == "finalizing", seconds=WAIT_SECONDS, what="it is finalizing")
    stack.kill_and_start("scheduler")
    stack.kill_and_start("api")
    eventually(stack.is_ready, seconds=WAIT_SECONDS, what="the front end is back")
    began = time.monotonic()
    batch.check()
    assert time.monotonic() - began < WAIT_SECONDS


@pytest.mark.faults
def test_two_front_ends_killed_again_and_again_end_every_batch_once(stack):
    stack.start("api-b", RANKMILL_API_PORT="0")
    batches = [Batch(stack, size) for size in (6_000, 4_000, 500, 100, 1)]
    randomly = random.Random(8)
    for _ in range(8):
        time.sleep(randomly.uniform(0.5, 4))
        if all(batch.row("state") in ENDED for batch in batches):
            break
        name = randomly.choice(["api", "api-b", "scheduler", "worker-a"])
        changes = {"RANKMILL_API_PORT": "0"} if name == "api-b" else {}
        stack.kill(name)
        stack.start(name, **changes)
    eventually(stack.is_ready, seconds=WAIT_SECONDS, what="the front end is back")
    for batch in batches:
        batch.check()


@pytest.mark.faults
def test_a_batch_that_is_cancelled_under_the_hands_of_whoever_moves_it_on_ends_cancelled(stack):
    for pause in (0.0, 0.3, 1.0, 2.5):
        batch = Batch(stack, 5_000)
        time.sleep(pause)
        answer = stack.http.post(f"/v1/batches/{batch.name}/cancel")
        ended = batch.until_ended()
        if answer.status_code == 409:
            assert ended["status"] == "completed"
            continue
        if ended["status"] == "completed":  # it was finalizing when it was asked
            assert answer.json()["status"] == "finalizing"
            continue
        counts = ended["request_counts"]
        assert ended["status"] == "cancelled"
        assert counts["total"] in (0, 5_000)
        assert counts["completed"] + counts["failed"] == counts["total"]
        if counts["total"]:
            output, errors = batch.lines(ended["output_file_id"]), batch.lines(ended["error_file_id"])
            assert (len(output), len(errors)) == (counts["completed"], counts["failed"])
