"""A window holds a set time of work: few chunks of a slow worker, all that may be of a fast one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.rates import Rate
from core.windows import LEAST_CHUNKS, START_CHUNKS, most_chunks, window_size


def rate(chunks_per_second):
    return Rate(1_000 * chunks_per_second, chunks_per_second, 1.0)


rates = st.none() | st.floats(0, 1e6).map(rate)


@pytest.mark.parametrize(
    ("chunks_per_second", "size"),
    [
        (1 / 30, 2),  # a large model on a CPU: a chunk of 30 s
        (0.2, 2),
        (0.21, 3),
        (0.5, 5),
        (1.2, 12),
        (3.0, 12),  # a small model on a GPU
        (500.0, 12),  # the fake model
        (0.0, 2),
    ],
)
def test_ten_seconds_of_work_between_two_chunks_and_the_most(chunks_per_second, size):
    assert window_size(rate(chunks_per_second), window_seconds=10, most=12) == size


@pytest.mark.parametrize(("most", "size"), [(1, 1), (3, 3), (4, 4), (12, START_CHUNKS)])
def test_a_worker_that_measured_nothing_starts_with_a_few(most, size):
    assert window_size(None, window_seconds=10, most=most) == size


@given(found=rates, seconds=st.floats(0.001, 86_400), most=st.integers(1, 255))
def test_a_window_is_never_under_two_chunks_nor_above_the_most(found, seconds, most):
    size = window_size(found, window_seconds=seconds, most=most)
    assert min(LEAST_CHUNKS, most) <= size <= most


@given(one=st.floats(0, 1e4), two=st.floats(0, 1e4), seconds=st.floats(0.001, 1e3), most=st.integers(1, 255))
def test_a_faster_worker_never_gets_a_smaller_window(one, two, seconds, most):
    slow, fast = (window_size(rate(each), window_seconds=seconds, most=most) for each in sorted((one, two)))
    assert slow <= fast


@given(per_second=st.floats(0.001, 1e4), seconds=st.floats(0.001, 1e3), most=st.integers(2, 255))
def test_between_its_bounds_a_window_holds_the_time_and_at_most_a_chunk_more(per_second, seconds, most):
    size = window_size(rate(per_second), window_seconds=seconds, most=most)
    if LEAST_CHUNKS < size < most:
        assert seconds * 0.999_999 <= size / per_second <= seconds + 1.000_001 / per_second


@pytest.mark.parametrize(
    ("bulk_window", "threads", "most"), [(12, 16, 12), (12, 8, 7), (12, 2, 1), (12, 1, 1), (4, 16, 4)]
)
def test_a_thread_is_left_to_small_jobs(bulk_window, threads, most):
    assert most_chunks(bulk_window=bulk_window, threads=threads) == most
