"""A hint that was taken is worked on at once, and Redis is told a moment later that somebody has it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from uuid import uuid4

import pytest
import redis
from celery.worker import state as celery_state
from kombu.asynchronous import set_event_loop
from kombu.entity import Queue
from kombu.transport import redis as redis_transport

from core.chunks import ChunkKey
from core.queues import SCORE_CHUNK
from store import hints
from worker import consumer
from worker.consumer import NOTE_SECONDS, _Window

QUEUE = "small.of-the-window"
UNACKED = "unacked"


class Hub:
    """Celery's event loop, whose time passes when a test says so."""

    def __init__(self):
        self.waiting = []

    def call_later(self, seconds, function):
        self.waiting.append((seconds, function))

    def wait(self):
        """Let all of it happen."""
        while self.waiting:
            self.waiting.pop(0)[1]()


class Reader:
    """One that takes hints as a worker does."""

    def __init__(self, app, client):
        self.client, self.app = client, app
        self.connection = app.connection_for_read()
        self.taken = []
        reading = self.connection.Consumer(Queue(QUEUE, routing_key=QUEUE), on_message=self.taken.append)
        reading.consume()
        self.channel = reading.channel

    def take(self):
        hints.publish(self.app, [ChunkKey(uuid4(), 0)], queue=QUEUE)
        self.connection.drain_events(timeout=10)
        return self.taken.pop()

    @property
    def num_noted(self):
        return self.client.hlen(UNACKED)

    @property
    def num_waiting(self):
        return self.client.llen(QUEUE)


@pytest.fixture
def hub(monkeypatch):
    hub = Hub()
    monkeypatch.setattr(consumer, "get_event_loop", lambda: hub)
    return hub


@pytest.fixture
def reader(monkeypatch, redis_url):
    monkeypatch.setattr(redis_transport.Channel, "QoS", _Window)
    app = hints.celery_app(redis_url, "")
    with redis.Redis.from_url(redis_url) as client:
        client.delete(QUEUE, UNACKED, "unacked_index")
        reader = Reader(app, client)
        yield reader
        reader.connection.close()
        client.delete(QUEUE, UNACKED, "unacked_index")
    app.close()


def test_a_hint_is_handed_on_before_redis_is_told_that_somebody_has_it(hub, reader):
    message = reader.take()
    assert (reader.num_noted, [seconds for seconds, _ in hub.waiting]) == (0, [NOTE_SECONDS])
    hub.wait()
    assert reader.num_noted == 1
    message.ack()
    assert (reader.num_noted, reader.num_waiting) == (0, 0)


def test_one_that_is_acknowledged_before_is_never_told_of(hub, reader):
    reader.take().ack()
    hub.wait()
    assert (reader.num_noted, reader.num_waiting) == (0, 0)


def test_a_hint_in_hand_takes_its_place_in_the_window_at_once(hub, reader):
    reader.channel.qos.prefetch_count = 1
    message = reader.take()
    assert not reader.channel.qos.can_consume()
    message.ack()
    assert reader.channel.qos.can_consume()
    assert hub.waiting


def test_one_that_is_given_back_before_comes_again(hub, reader):
    reader.take().reject(requeue=True)
    assert (reader.num_noted, reader.num_waiting) == (0, 1)
    hub.wait()
    assert (reader.num_noted, reader.num_waiting) == (0, 1)


def test_what_is_in_hand_at_the_end_comes_again(hub, reader):
    reader.take()
    reader.connection.close()
    assert (reader.num_noted, reader.num_waiting) == (0, 1)
    hub.wait()
    assert (reader.num_noted, reader.num_waiting) == (0, 1)


def test_without_a_loop_redis_is_told_at_once(reader):
    reader.take()
    assert reader.num_noted == 1


def test_a_full_redis_is_no_end(hub, reader, monkeypatch):
    def refuse(*_):
        raise redis.OutOfMemoryError("OOM")

    message = reader.take()
    monkeypatch.setattr(redis_transport.QoS, "append", refuse)
    hub.wait()
    message.ack()
    assert (reader.num_noted, reader.num_waiting) == (0, 0)


@pytest.fixture
def consuming(monkeypatch, redis_url):
    """Celery's own loop at work: a function that sends a hint, and returns how many Redis was told of as its task began."""
    monkeypatch.setattr(redis_transport.Channel, "QoS", _Window)
    monkeypatch.setattr(celery_state, "should_stop", None)
    app, noted = hints.celery_app(redis_url, ""), SimpleQueue()
    with redis.Redis.from_url(redis_url) as client:

        @app.task(name=SCORE_CHUNK)
        def note(_job_id, _chunk_no):
            noted.put(client.hlen(UNACKED))

        reading = consumer.Consumer(app, [QUEUE], name="a-reader", num_threads=1)
        thread = threading.Thread(target=reading.run, daemon=True)
        thread.start()

        def send():
            with suppress(hints.Unreachable):  # its connection may be gone as well
                hints.publish(app, [ChunkKey(uuid4(), 0)], queue=QUEUE)
                return noted.get(timeout=20)
            return send()

        yield send
        reading.end()
        thread.join(20)
        assert not thread.is_alive()
        client.delete(QUEUE, UNACKED, "unacked_index")
    set_event_loop(None)
    app.close()


@pytest.mark.filterwarnings("ignore::celery.exceptions.SecurityWarning")  # these tests may run as root
def test_a_reader_that_lost_redis_begins_with_hints_as_soon_as_before(consuming, redis_url):
    assert consuming() == 0
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        while not (waiting := [each["id"] for each in client.client_list() if "b" in each["flags"]]):
            time.sleep(0.01)
        for number in waiting:
            client.client_kill_filter(_id=number)
    assert [consuming() for _ in range(3)] == [0, 0, 0]
