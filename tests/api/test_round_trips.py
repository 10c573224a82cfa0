"""What a small job costs: how often the front end and a worker wait for Postgres, counted on the wire."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest
from cards import FAKE_CARD
from in_process_worker import working
from keyed import door

from api import model_choice
from store.database import Database
from store.tokenizer import ByteTokenizer

LEAST = 6  # submit, the wait for its disk, claim, save and end, the job, its results
NUM_POSTS = 30  # some of them cost more: what is queued is measured once a second, and who waits looks after 0.1 s


class Wire:
    """Stands before Postgres and counts how often it says that it is ready for more, which is once a round trip."""

    def __init__(self, target):
        self.target, self.num_trips = target, 0
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._server.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:  # closed
                return
            server = socket.create_connection(self.target)
            for ours in (client, server):
                ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._up, args=(client, server), daemon=True).start()
            threading.Thread(target=self._down, args=(server, client), daemon=True).start()

    def _up(self, client, server):
        with client, server, suppress(OSError):  # either end may close
            while data := client.recv(1 << 16):
                server.sendall(data)

    def _down(self, server, client):
        with server.makefile("rb") as messages, client, suppress(OSError):
            while head := messages.read(5):
                kind, length = struct.unpack(">cI", head)
                if kind == b"Z":
                    with self._lock:
                        self.num_trips += 1
                client.sendall(head + messages.read(length - 4))


@contextmanager
def wire_to(url):
    parts = urlsplit(url)
    wire = Wire((parts.hostname, parts.port))
    user = parts.netloc.rpartition("@")[0]
    try:
        yield wire, parts._replace(netloc=f"{user}@127.0.0.1:{wire.port}", query="sslmode=disable").geturl()
    finally:
        wire.close()


@pytest.fixture
def trips_of(monkeypatch, serving, api_settings, database, database_url, redis_url):
    """Post a job and wait for its end; the round trips that it took."""
    monkeypatch.setattr(model_choice, "KEPT_SECONDS", 60.0)
    with wire_to(database_url) as (wire, url):
        workers_own = Database(url)
        with (
            door(serving, api_settings, database, url) as entrance,
            working(workers_own, redis_url, FAKE_CARD, ByteTokenizer()),
        ):
            api = entrance.client()

            def post(**options):
                before = wire.num_trips
                answer = api.post("/v1/jobs", json={"items": ["a", "b"], **options}, headers={"Prefer": "wait=20"})
                assert answer.json()["status"] == "completed"
                return wire.num_trips - before

            yield post
        workers_own.dispose()


def test_a_small_job_takes_six_round_trips_to_postgres(trips_of):
    assert min(trips_of() for _ in range(NUM_POSTS)) == LEAST


def test_its_webhook_adds_those_of_a_transaction_and_its_delivery(trips_of):
    options = {"webhook_url": "https://receiver.example/hook"}
    assert min(trips_of(**options) for _ in range(NUM_POSTS)) == LEAST + 3
