"""Uploads that break: by the client, by silence, by a broken encoding, by a bomb. Nothing of them is left but the reason."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest
import zstandard
from api_limits import MAX_ITEM_BYTES, MAX_ITEMS
from memory_growth import watched_growth

NDJSON = {"Content-Type": "application/x-ndjson"}
HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
LINES = b"{}\n" + b'"some text"\n' * 20


@pytest.fixture
def last_job(api):
    """The newest job, once it is in that state."""

    def last_job(state="failed"):
        deadline = time.monotonic() + 10
        while not (found := api.get("/v1/jobs?limit=1").json()["items"]) or found[0]["status"] != state:
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
        return found[0]

    return last_job


@pytest.fixture
def post(api):
    def post(content, encoding="identity"):
        return api.post("/v1/jobs", content=content, headers={**NDJSON, "Content-Encoding": encoding})

    return post


def connect(url):
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=10)
    connection.sendall(HEAD)
    return connection


def send(connection, piece):
    connection.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")


def num_left(ledger):
    """Open jobs, and rows of jobs that failed."""
    with ledger.begin() as connection:
        return connection.exec_driver_sql(
            "SELECT (SELECT count(*) FROM jobs WHERE state = 'receiving'),"
            " (SELECT count(*) FROM chunks JOIN jobs ON id = job_id WHERE jobs.state = 'failed'),"
            " (SELECT count(*) FROM chunk_inputs JOIN jobs ON id = job_id WHERE jobs.state = 'failed')"
        ).one()


def test_a_client_that_goes_away_leaves_a_failed_job_with_the_line(api_url, last_job, ledger):
    with connect(api_url) as connection:
        send(connection, LINES)
        time.sleep(0.1)
    job = last_job()
    assert job["error"] == {
        "code": "upload_incomplete",
        "detail": "the connection closed before the body had ended",
        "line": 22,
        "cause": "body_incomplete",
    }
    assert job["counts"]["total"] == 0
    assert tuple(num_left(ledger)) == (0, 0, 0)


def test_clients_that_go_away_again_and_again_leave_no_connection_thread_or_row(api_url, ledger, front_end):
    def settled():
        return num_left(ledger)[0] == 0 and not front_end.uploads.locked() and front_end.uploads._value == 8

    for round_no in range(200):
        with connect(api_url) as connection:
            for _ in range(round_no % 4):
                send(connection, LINES)
        deadline = time.monotonic() + 10
        while not settled() and round_no % 8 == 7:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    deadline = time.monotonic() + 10
    while not settled():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert tuple(num_left(ledger)) == (0, 0, 0)
    assert front_end.database.engine.pool.checkedout() == 0
    assert sum(thread.name.startswith("ingest-store") for thread in threading.enumerate()) == 0
    assert not front_end.waiting
    with ledger.begin() as connection:
        idle = (
            "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%%' AND datname = 'api_tests'"
        )
        assert connection.exec_driver_sql(idle).scalar() == 0


def test_a_body_that_falls_silent_is_told_so_and_fails(serving, api_settings, last_job):
    settings = api_settings.model_copy(update={"receiving_timeout_seconds": 0.5})
    with serving(settings) as url, connect(url) as connection:
        send(connection, LINES)
        answer = connection.recv(1 << 16).decode()
    assert answer.startswith("HTTP/1.1 408")
    assert json.loads(answer.partition("\r\n\r\n")[2])["code"] == "upload_incomplete"
    assert last_job()["error"]["cause"] == "upload_incomplete"


def test_a_slow_body_is_touched_while_its_bytes_arrive(serving, api_settings, ledger, last_job):
    settings = api_settings.model_copy(update={"receiving_timeout_seconds": 0.9})
    with serving(settings) as url, connect(url) as connection:
        send(connection, LINES)
        for _ in range(14):
            time.sleep(0.1)
            send(connection, b'"slow"\n')
        with ledger.begin() as look:
            silent = look.exec_driver_sql("SELECT now() - touched_at FROM jobs WHERE state = 'receiving'").scalar()
        assert silent.total_seconds() < 0.9
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 202")
    assert last_job("queued")["counts"]["total"] == 34


def test_a_front_end_that_stops_breaks_its_uploads_off(serving, api_settings, last_job, ledger):
    with serving(api_settings) as url:
        connection = connect(url)
        send(connection, LINES)
        last_job("receiving")
    connection.close()
    assert last_job()["error"]["cause"] == "not_ready"
    assert tuple(num_left(ledger)) == (0, 0, 0)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("kept", [0.3, 0.99])
def test_a_compressed_body_that_breaks_off_fails(encoding, kept, post, num_rows, ledger):
    lines = b"{}\n" + b"".join(b'"text %d"\n' % (n * 7919) for n in range(900))
    whole = {"gzip": gzip.compress, "zstd": zstandard.compress}[encoding](lines)
    answer = post(whole[: int(kept * len(whole))], encoding)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_encoding")
    assert tuple(num_left(ledger)) == (0, 0, 0)


def test_a_job_that_is_cancelled_while_it_arrives_stays_cancelled(api, api_url, last_job):
    with connect(api_url) as connection:
        send(connection, LINES)
        job = last_job("receiving")
        api.post(job["links"]["cancel"])
        connection.sendall(b"0\r\n\r\n")
        answer = connection.recv(1 << 16).decode()
    assert "upload_ended" in answer
    assert last_job("cancelled")["id"] == job["id"]


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("byte", [b"\0", b" ", b"\n"])
def test_a_bomb_is_stopped_while_memory_stays_flat(encoding, byte, serving, api_settings, post, num_rows):
    import httpx

    bomb = {"gzip": gzip.compress, "zstd": zstandard.compress}[encoding](b'{}\n"a"\n' + byte * 100_000_000)
    settings = api_settings.model_copy(update={"max_upload_bytes": 60_000_000})
    with serving(settings) as url:
        headers = {**NDJSON, "Content-Encoding": encoding}
        with watched_growth() as growth:
            answer = httpx.post(f"{url}/v1/jobs", content=bomb, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 413
    assert answer.json()["code"] == ("body_too_large" if byte == b"\n" else "line_too_long")
    assert growth.num_bytes < 48_000_000


def test_a_body_without_end_is_stopped_at_the_limit_of_items(api, ledger):
    def endless():
        yield b"{}\n"
        while True:
            yield b'"a"\n' * 1_000

    answer = api.post("/v1/jobs", content=endless(), headers=NDJSON)
    assert (answer.status_code, answer.json()["code"]) == (422, "too_many_items")
    assert f"{MAX_ITEMS:,}" in answer.json()["detail"]
    assert tuple(num_left(ledger)) == (0, 0, 0)


def test_a_line_and_an_item_have_their_limits(post):
    assert post(b'{}\n"' + b"a" * (5 * MAX_ITEM_BYTES + 70_000) + b'"\n').json()["code"] == "line_too_long"
    (error,) = post(b'{}\n"' + b"a" * (MAX_ITEM_BYTES + 1) + b'"\n').json()["errors"]
    assert error["code"] == "item_too_large"


def test_more_uploads_than_the_server_reads_are_told_to_come_again(serving, api_settings):
    import httpx

    settings = api_settings.model_copy(update={"max_uploads": 1})
    with serving(settings) as url, connect(url) as connection:
        send(connection, LINES)
        time.sleep(0.2)
        answer = httpx.post(f"{url}/v1/jobs", content=LINES, headers=NDJSON, trust_env=False)
        assert (answer.status_code, answer.json()["code"]) == (503, "too_many_uploads")
        assert int(answer.headers["Retry-After"]) > 0
