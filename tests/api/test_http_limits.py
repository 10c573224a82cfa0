"""What comes before a body: how much of it is taken, and for how long; and the headers of every answer."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from api.http_protocol import MAX_FIELDS, MAX_HEAD_BYTES, MAX_URL_BYTES, LimitedHttp

SECURE = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def connected(api_url):
    """A bare connection to the front end."""
    address = urlsplit(api_url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        yield connection


def rest_of(connection):
    """Everything until the server closes."""
    found = b""
    with suppress(ConnectionResetError):  # it closed while we were still sending
        while piece := connection.recv(65_536):
            found += piece
    return found


def send(connection, data):
    with suppress(BrokenPipeError, ConnectionResetError):  # it has closed already
        connection.sendall(data)


def refused(connection, data):
    """Send it; the status and the code of the answer after which the server closed."""
    send(connection, data)
    head, _, body = rest_of(connection).partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["code"]


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [
        (b"GET /" + b"a" * MAX_URL_BYTES + b" HTTP/1.1\r\nHost: x\r\n\r\n", (414, "url_too_long")),
        (GET + b"A: b\r\n" * MAX_FIELDS + b"\r\n", (431, "headers_too_large")),
        (GET + b"A: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n", (431, "headers_too_large")),
        (GET + (b"A: " + b"b" * 8_000 + b"\r\n") * 9 + b"\r\n", (431, "headers_too_large")),
        (b"nonsense\r\n\r\n", (400, "invalid_http")),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", (400, "invalid_http")),
        (
            b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            (400, "invalid_http"),
        ),
    ],
    ids=["url", "fields", "one field", "their size", "no HTTP", "two lengths", "length and chunks"],
)
def test_a_head_past_a_limit_is_refused_and_the_connection_closed(connected, request_bytes, answer):
    assert refused(connected, request_bytes) == answer


@pytest.mark.parametrize("head", [GET + b"A: ", b"GET /", GET], ids=["a field", "a url", "many fields"])
def test_a_head_that_never_ends_is_refused_while_it_comes(connected, head):
    send(connected, head)
    piece = (b"A: " + b"b" * 1_000 + b"\r\n") * 32 if head is GET else b"b" * 32_768
    for _ in range(12):
        send(connected, piece)
    found = rest_of(connected)
    assert found == b"" or found.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 414 "))


def test_trailers_that_never_end_break_the_connection_off(connected):
    send(connected, b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
    send(connected, b"Transfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\nA: ")
    for _ in range(12):
        send(connected, b"b" * 32_768)
    assert b" 202 " not in rest_of(connected)


def test_what_fits_is_taken(connected):
    fields = b"".join(b"A%d: %s\r\n" % (n, b"b" * 500) for n in range(MAX_FIELDS - 2))
    url = b"/livez?" + b"a" * (MAX_URL_BYTES - 7)
    connected.sendall(b"GET " + url + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + fields + b"\r\n")
    assert rest_of(connected).startswith(b"HTTP/1.1 200 ")


def test_requests_one_after_another_on_one_connection_are_each_measured_alone(connected):
    request = GET + b"A: " + b"b" * (MAX_HEAD_BYTES - 100) + b"\r\n\r\n"
    for _ in range(5):
        connected.sendall(request)
        answer = b""
        while not answer.endswith(b"}"):
            answer += connected.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.fixture
def hasty(serving, api_settings, monkeypatch):
    """A front end that waits for a head for less than usual."""
    monkeypatch.setattr(LimitedHttp, "head_seconds", 0.5)
    with serving(api_settings) as url:
        address = urlsplit(url)
        yield address.hostname, address.port


@pytest.mark.parametrize("sent", [b"", GET, b"POST /v1/jobs HT"], ids=["nothing", "half a head", "half a line"])
def test_a_head_that_does_not_come_is_not_waited_for(hasty, sent):
    with socket.create_connection(hasty, timeout=30) as connection:
        connection.sendall(sent)
        found = rest_of(connection)
    assert found.startswith(b"HTTP/1.1 408 ") if sent else found == b""


def test_a_slow_head_is_not_kept_alive_by_a_byte_now_and_then(hasty):
    with socket.create_connection(hasty, timeout=0.1) as connection:
        connection.sendall(GET)
        found = None
        for _ in range(300):
            try:
                found = connection.recv(65_536)
            except TimeoutError:
                send(connection, b"A")
            else:
                break
    assert found.startswith(b"HTTP/1.1 408 ")


def test_a_body_that_falls_silent_is_not_waited_for(api_url, monkeypatch):
    monkeypatch.setattr("api.bodies.SILENT_SECONDS", 0.5)
    address = urlsplit(api_url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(
            b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        head, _, body = rest_of(connection).partition(b"\r\n\r\n")
    assert (int(head.split()[1]), json.loads(body)["code"]) == (408, "body_silent")


@pytest.mark.parametrize("path", ["/livez", "/v1/jobs", "/openapi.json", "/nothing", "/v1/jobs/x", "/v1/jobs?limit=x"])
def test_every_answer_has_the_headers_that_keep_a_browser_out(api, path):
    answer = api.get(path)
    assert {name: answer.headers.get(name) for name in SECURE} == SECURE
    assert answer.headers["cache-control"] in ("no-cache", "no-store")


def test_an_error_of_ours_has_them_too(api, monkeypatch):
    monkeypatch.setattr("store.jobs.list_page", None)
    answer = api.get("/v1/jobs")
    assert answer.status_code == 500
    assert {name: answer.headers.get(name) for name in SECURE} == SECURE


def test_a_secret_is_stored_by_no_cache(api):
    answer = api.post("/v1/webhook_secret/rotate")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
