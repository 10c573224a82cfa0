"""The pool: which of the waiting sequences go next."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from worker.engine.fake import FakeEngine, FakeTroubles
from worker.engine.options import EngineOptions
from worker.engine.protocol import Prompts
from worker.piece import Request
from worker.pool import WINDOW_BATCHES, Pool


@pytest.fixture
def pool():
    return Pool()


def info(max_batch_tokens, layout="padded"):
    return replace(FakeEngine(EngineOptions(max_batch_tokens=max_batch_tokens), FakeTroubles()).info, layout=layout)


def request(number, lengths, tokens=None):
    ids = np.full(sum(lengths), number, np.int32) if tokens is None else np.array(tokens, np.int32)
    return Request(number, Prompts(ids, np.array(lengths, np.int32), np.zeros((len(lengths), 2), np.int32)))


def takes(pool, engine_info, count):
    """The numbers of the requests in each of the next batches."""
    return [pool.take(engine_info).numbers.tolist() for _ in range(count)]


def test_small_jobs_go_first_but_bulk_work_is_not_starved(pool):
    pool.add(request(0, [1] * 3), is_small=False)
    pool.add(request(1, [1] * 8), is_small=True)
    batches = takes(pool, info(1), 11)
    assert [number for (number,) in batches] == [1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0]
    assert pool.take(info(1)) is None


def test_like_lengths_of_unlike_requests_meet(pool):
    for number in range(3):
        pool.add(request(number, [10, 100, 1_000]), is_small=False)
    assert [sorted(batch) for batch in takes(pool, info(3_000), 2)] == [[0, 0, 1, 1, 2, 2], [0, 1, 2]]


def test_shared_prefixes_of_unlike_requests_meet_in_a_packed_batch(pool):
    pool.add(request(0, [3, 3], [7, 7, 1, 8, 8, 1]), is_small=False)
    pool.add(request(1, [3, 3], [8, 8, 2, 7, 7, 2]), is_small=False)
    batches = [pool.take(info(4, "packed")) for _ in range(2)]
    assert sorted(sorted({ids[0] for ids in batch.tokens()}) for batch in batches) == [[7], [8]]


def test_the_oldest_request_goes_on_with_every_batch_until_it_is_done(pool):
    pool.add(request(0, [5, 500, 50]), is_small=False)
    pool.add(request(1, [499, 501]), is_small=False)
    oldest = []
    for number in range(2, 6):  # newcomers keep arriving, with shorter and longer prompts
        oldest += [min(batch) for batch in takes(pool, info(500), 1)]
        pool.add(request(number, [3, 600, 45]), is_small=False)
    assert oldest == [0, 0, 1, 1]


def test_no_more_is_planned_than_a_few_batches_so_that_chunks_end_one_after_another(pool):
    for number in range(100):
        pool.add(request(number, [10]), is_small=False)
    first = takes(pool, info(10), WINDOW_BATCHES)
    assert [number for (number,) in first] == list(range(WINDOW_BATCHES))
    assert len(pool._bulk.unplanned) >= 100 - 2 * WINDOW_BATCHES


def test_what_is_put_first_runs_first_and_as_it_is(pool):
    pool.add(request(0, [1, 1, 1, 1]), is_small=False)
    whole = pool.take(info(100))
    pool.add(request(1, [1]), is_small=True)
    pool.put_first(whole.halves())
    assert takes(pool, info(100), 3) == [[0, 0], [0, 0], [1]]


def test_a_request_is_done_when_its_last_sequence_is_settled(pool):
    one, other = request(0, [1, 1]), request(1, [1])
    pool.add(one, is_small=False)
    pool.add(other, is_small=False)
    first, second = pool.take(info(2)), pool.take(info(2))
    pool.settle(first)
    assert (one.is_done.is_set(), other.is_done.is_set()) == (True, False)
    pool.fail_all(ValueError("over"))
    assert other.is_done.is_set()
    assert (one.failure, str(other.failure)) == (None, "over")
    pool.settle(second)
