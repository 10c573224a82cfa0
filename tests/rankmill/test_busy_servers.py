"""Servers that are busy, away or strange, played by a function or a few lines of socket."""

from __future__ import annotations

import json
import socket
import time
from threading import Thread

import httpx
import pytest

from rankmill import AsyncClient, Client, NotReady, Refused

COUNTS = {"total": 2, "pending": 0, "succeeded": 2, "failed": 0, "cancelled": 0}
JOB = {
    "id": "j",
    "status": "completed",
    "model": "m",
    "counts": COUNTS,
    "progress": {"fraction": 1.0},
    "usage": {"prompt_tokens": 1, "cached_tokens": 0},
}
PROBLEM = {"code": "quota", "detail": "too much of it", "title": "-", "status": 429}
RESULT = {
    "index": 0,
    "id": None,
    "score": 0.5,
    "probabilities": [0.5, 0.5],
    "label_mass": 1.0,
    "prompt_tokens": 1,
    "cached_tokens": 0,
    "truncated": False,
    "tokens_dropped": 0,
    "error": None,
}


class Script:
    """Answers in a row; the last one is given again and again. ``bodies`` are what was sent, ``keys`` their idempotency keys."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.bodies = []
        self.keys = []

    def __call__(self, request):
        self.keys.append(request.headers.get("Idempotency-Key"))
        self.bodies.append(request.read())
        return self.answer()

    def answer(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        status, body, headers = answer
        return httpx.Response(status, headers=headers, **({"text": body} if isinstance(body, str) else {"json": body}))


def client_of(script, pauses, **options):
    return Client(
        "http://test", transport=httpx.MockTransport(script), on_pause=lambda *pause: pauses.append(pause), **options
    )


def busy(status, seconds):
    return status, {**PROBLEM, "status": status}, {"Retry-After": seconds}


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_waited_for_and_then_the_job_is_sent_once_more(status):
    script, pauses = Script(busy(status, "1"), (202, JOB, {})), []
    begin = time.monotonic()
    with client_of(script, pauses) as client:
        assert client.submit(items=["a", "b"]).id == "j"
    assert 1 <= time.monotonic() - begin < 2
    assert pauses == [(1, "too much of it")]
    assert [json.loads(body)["items"] for body in script.bodies] == [["a", "b"]] * 2


def test_a_date_to_retry_after_is_read_too():
    script, pauses = Script(busy(429, "Thu, 01 Jan 2015 00:00:00 GMT"), (202, JOB, {})), []
    with client_of(script, pauses) as client:
        client.submit(items=["a"])
    assert len(pauses) == 1
    assert pauses[0][0] < 1


def test_what_asks_for_more_patience_than_there_is_is_told_at_once():
    script, pauses = Script(busy(429, "3600")), []
    with client_of(script, pauses) as client, pytest.raises(Refused, match="too much of it") as told:
        client.submit(items=["a"])
    assert (told.value.status, told.value.retry_after_seconds, pauses) == (429, 3_600, [])


def test_results_and_waiting_honour_it_as_well():
    script, pauses = Script(busy(429, "1"), (200, JOB, {}), busy(503, "1"), (200, json.dumps(RESULT) + "\n", {})), []
    with client_of(script, pauses) as client:
        assert client.wait("j").is_ended
        assert [result.index for result in client.results("j")] == [0]
    assert [seconds for seconds, _ in pauses] == [1, 1]


def test_a_look_is_not_tried_again():
    script, pauses = Script(busy(429, "1"), (200, JOB, {})), []
    with client_of(script, pauses) as client, pytest.raises(Refused):
        client.job("j")
    assert not pauses


@pytest.mark.parametrize(
    "error", [httpx.ReadError("reset"), httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("gone")]
)
def test_a_job_that_may_have_arrived_is_sent_again_under_its_key_until_patience_ends(error):
    script = Script(error, (202, JOB, {}))
    with client_of(script, []) as client:
        client.submit(items=["a"])
    assert len(script.bodies) == 2
    assert len(set(script.keys)) == 1
    with (
        client_of(Script(error), [], patience_seconds=0) as client,
        pytest.raises(NotReady, match="may have been taken"),
    ):
        client.submit(items=["a"])


def test_a_job_that_nobody_heard_of_is():
    script = Script(httpx.ConnectError("refused"), httpx.ConnectTimeout("slow"), (202, JOB, {}))
    with client_of(script, []) as client:
        client.submit(items=["a"])
    assert len(script.bodies) == 3


def test_a_generator_that_was_sent_in_full_and_was_held_goes_again_after_a_503():
    script = Script(busy(503, "0"), (202, JOB, {}))
    with client_of(script, []) as client:
        client.submit(items=(str(number) for number in range(2_000)), compression="none", query="q")
    first, second = script.bodies
    assert first == second
    assert len(first.splitlines()) == 2_001


@pytest.mark.parametrize(("status", "kind"), [(429, Refused), (503, NotReady)])
def test_a_generator_that_is_gone_is_not_sent_cut_short(status, kind):
    script = Script(busy(status, "0"), (202, JOB, {}))
    with (
        client_of(script, []) as client,
        pytest.raises(kind, match=r"line 2,001 .*too much of it.* can't be read again"),
    ):
        client.submit(items=("x" * 1_000 for _ in range(2_000)), compression="none")
    assert len(script.bodies) == 1


def test_errors_of_other_connections_within_the_items_are_not_taken_for_ours():
    def items():
        yield "a"
        raise httpx.ReadError("of a page that the items come from")

    script = Script((202, JOB, {}))
    with client_of(script, []) as client, pytest.raises(httpx.ReadError, match="of a page"):
        client.submit(items=items())


def serve_busy_then_take(listener, bodies):
    """Answers 503 before any of the body is read, and reads on; then takes what comes."""
    for status in ("503 Busy", "202 Accepted"):
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as file:
            while file.readline().strip():
                pass
            body = json.dumps(JOB if status.startswith("202") else {**PROBLEM, "status": 503}).encode()
            answer = f"HTTP/1.1 {status}\r\nRetry-After: 0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            if status.startswith("503"):
                connection.sendall(answer)
            taken = bytearray()
            while size := int(file.readline().strip() or b"0", 16):
                taken += file.read(size)
                file.readline()
            if not status.startswith("503"):
                file.readline()
                connection.sendall(answer)
            bodies.append(bytes(taken))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_early_503_stops_a_generator_which_then_goes_on_from_where_it_was(kind):
    import asyncio

    taken = 0

    def items():
        nonlocal taken
        for number in range(60_000):
            if number == 20_000:
                time.sleep(0.5)  # the answer is there by now
            taken = number
            yield {"id": str(number), "text": "x"}

    async def submit(url):
        async with AsyncClient(url) as client:
            await client.submit(items=items())

    import zstandard

    bodies = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve_busy_then_take, args=(listener, bodies))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if kind == "async":
            asyncio.run(submit(url))
        else:
            with Client(url) as client:
                client.submit(items=items())
        thread.join(30)
    assert len(bodies[0]) < len(bodies[1])
    with zstandard.ZstdDecompressor().stream_reader(bodies[1]) as reader:
        lines = reader.read().splitlines()
    assert [json.loads(line)["id"] for line in lines[1:]] == [str(number) for number in range(60_000)]


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "", "http://"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(Refused, match="not the address of a server"):
        Client(url)


def test_an_answer_that_is_waited_for_has_its_time_on_top_of_the_timeout():
    seen = []

    def answer(request):
        seen.append((request.headers.get("Prefer"), request.extensions["timeout"]["read"]))
        return httpx.Response(200, json={**JOB, "results": [RESULT], "next_cursor": None})

    with Client("http://test", timeout_seconds=5, transport=httpx.MockTransport(answer)) as client:
        client.rerank("q", ["a"], wait_seconds=50)
        client.job("j")
        client.cancel("j")
        client.rerank("q", ["a"], wait_seconds=0)
    assert seen == [("wait=50", 55), (None, 5), (None, 605), (None, 5)]
