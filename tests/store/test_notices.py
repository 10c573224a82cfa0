"""Notices of ended jobs: whoever waits hears of them, whatever became of the connection meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
import redis

from store import notices
from store.notices import EndedJobs


class FlakyRedis:
    """Fails once in one way, then says that the job has ended, again and again."""

    def __init__(self, failure, job_id):
        self._failures = [failure]
        self._job_id = job_id

    @asynccontextmanager
    async def _pubsub(self):
        yield self

    def pubsub(self, **_):
        return self._pubsub()

    async def subscribe(self, _channel):
        if self._failures:
            raise self._failures.pop()

    async def get_message(self, **_):
        await asyncio.sleep(0.01)
        return {"data": str(self._job_id).encode()}


@pytest.mark.parametrize(
    "failure",
    [
        redis.ConnectionError("reset"),
        OSError("reset"),
        RuntimeError("unable to perform operation; the handler is closed"),
    ],
    ids=["redis-py's", "the system's", "uvloop's"],
)
def test_after_a_broken_connection_it_listens_again(failure, monkeypatch):
    monkeypatch.setattr(notices, "RECONNECT_SECONDS", 0.01)
    job_id = uuid4()

    async def hear():
        ended = EndedJobs(FlakyRedis(failure, job_id))
        ended.start()
        async with ended.watch(job_id) as told, asyncio.timeout(5):
            await told.wait()
        await ended.stop()

    asyncio.run(hear())


def test_an_end_that_was_told_before_anyone_waited_is_heard_while_it_is_among_the_last(monkeypatch):
    monkeypatch.setattr(notices, "NUM_REMEMBERED", 2)
    jobs = [uuid4() for _ in range(3)]

    async def hear():
        ended = EndedJobs(FlakyRedis(None, jobs[0]))
        for job_id in jobs:
            ended._wake(str(job_id))
        heard = []
        for job_id in (*jobs, uuid4()):
            async with ended.watch(job_id) as told:
                heard.append(told.is_set())
        return heard

    assert asyncio.run(hear()) == [False, True, True, False]
