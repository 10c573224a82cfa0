"""Bodies that are too large, or that break off: refused while they arrive, and never kept."""

from __future__ import annotations

import socket
from itertools import count
from urllib.parse import urlsplit

import psutil
import pytest
import zstandard
from api_limits import MAX_BODY_BYTES

HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture
def connection(api_url):
    """A plain connection to the front end."""
    address = urlsplit(api_url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        yield connection


@pytest.fixture(autouse=True)
def _nothing_is_stored(num_rows):
    before = num_rows()
    yield
    assert num_rows() == before


def test_an_endless_body_is_cut_off_at_the_limit(connection):
    piece = b"x" * 65_536
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    before = psutil.Process().memory_info().rss

    with pytest.raises(OSError, match=r"reset|pipe"):
        for num_sent in count():
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            assert num_sent * len(piece) < 64 * MAX_BODY_BYTES, "it takes everything"

    assert psutil.Process().memory_info().rss - before < 16 << 20


def test_a_body_in_chunks_is_refused_with_the_limit(api):
    def pieces():
        for _ in range(MAX_BODY_BYTES // 65_536 + 1):
            yield b" " * 65_536

    answer = api.post("/v1/jobs", content=pieces(), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"


def test_a_body_at_the_limit_is_read(api):
    body = b'{"items": []}'.ljust(MAX_BODY_BYTES)
    answer = api.post("/v1/jobs", content=iter([body[:9], body[9:]]), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "no_items")


def test_an_announced_length_past_the_limit_is_refused_before_the_body_is_sent(connection):
    connection.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 10000000000\r\n\r\n")
    assert connection.recv(65_536).startswith(b"HTTP/1.1 413")


def test_a_small_body_that_opens_to_a_large_one_is_refused(api):
    bomb = zstandard.compress(b" " * 200_000_000)
    assert len(bomb) < 10_000
    answer = api.post(
        "/v1/jobs", content=bomb, headers={"Content-Type": "application/json", "Content-Encoding": "zstd"}
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert "decompressed" in answer.json()["detail"]


def test_a_client_that_breaks_off_its_body_leaves_nothing_behind(connection, api):
    connection.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"items": ["a"')
    connection.close()
    assert api.get("/livez").status_code == 200
