"""Results by score: complete, in order, the same in windows and pages of any size, and the best k of each query alone."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store import jobs, rankings

FAIL = None


@pytest.fixture
def scored(create, claim, save, read):
    """A completed job whose items have these (query, score) pairs; a score of None failed."""

    def scored(pairs, *, chunk_items=3, **parameters):
        job = create(len(pairs), chunk_items=chunk_items, parameters={"apply_softmax": False, **parameters})
        for chunk_no in range(-(-len(pairs) // chunk_items)):
            mine = claim(job, chunk_no)
            own = pairs[mine.first_index : mine.first_index + mine.num_items]
            save(
                mine,
                label_logprobs=[
                    value
                    for _, score in own
                    for value in ((math.nan, math.nan) if score is None else (math.log(score), -9.0))
                ],
                errors=["item_too_long" if score is None else None for _, score in own]
                if any(score is None for _, score in own)
                else None,
                query_nos=[query for query, _ in own] if any(query for query, _ in own) else None,
                item_ids=[f"id-{mine.first_index + place}" for place in range(len(own))],
            )
        return read(job)

    return scored


def expected(pairs, top_k=None):
    """The plain way: sort everything, then count."""
    order = sorted(range(len(pairs)), key=lambda i: (pairs[i][0], pairs[i][1] is None, -(pairs[i][1] or 0), i))
    if top_k is None:
        return order
    scored = [index for index in order if pairs[index][1] is not None]
    groups = itertools.groupby(scored, key=lambda index: pairs[index][0])
    return [index for _, own in groups for index in list(own)[:top_k]]


def streamed(database, job, **options):
    return [item.index for some in rankings.stream(database.begin, job, **options) for item in some.to_items()]


def paged(database, job, limit, status=None):
    found, after = [], None
    while True:
        page = rankings.page(database.begin, job, after=after, limit=limit, status=status)
        assert len(page.items) <= limit
        assert sum(run.num_items for run in page.evidence) == len(page.items)
        found += [item.index for item in page.items]
        if page.next_position is None:
            return found
        assert len(page.items) == limit
        after = page.next_position


PAIRS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([FAIL, 0.1, 0.2, 0.3, 0.9])), min_size=1, max_size=14)
SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SLOW
@given(pairs=PAIRS, top_k=st.none() | st.integers(1, 4), size=st.integers(1, 6), chunk_items=st.integers(1, 5))
def test_a_ranking_is_the_same_by_sorting_by_windows_and_by_pages(pairs, top_k, size, chunk_items, database, scored):
    job = scored(pairs, chunk_items=chunk_items, top_k=top_k)
    order = expected(pairs, top_k)
    assert streamed(database, job) == order
    assert streamed(database, job, size=size) == order
    assert paged(database, job, size) == order
    for place, index in enumerate(order):
        assert streamed(database, job, size=size, after=index) == order[place + 1 :]


def test_items_of_a_ranking_keep_what_is_theirs(database, scored):
    job = scored([(0, 0.2), (1, 0.5), (0, FAIL), (1, 0.9), (0, 0.7)])
    items = rankings.page(database.begin, job, after=None, limit=9).items
    assert [(item.index, item.id, item.error) for item in items] == [
        (4, "id-4", None),
        (0, "id-0", None),
        (2, "id-2", "item_too_long"),
        (3, "id-3", None),
        (1, "id-1", None),
    ]
    assert [item.score for item in items] == pytest.approx([0.7, 0.2, None, 0.9, 0.5])


def test_a_status_is_ranked_alone_and_failed_items_are_not_subject_to_top_k(database, scored):
    pairs = [(0, 0.2), (0, FAIL), (0, FAIL), (0, 0.9), (0, 0.4)]
    job = scored(pairs, top_k=1)
    assert streamed(database, job) == streamed(database, job, status="succeeded") == [3]
    assert streamed(database, job, status="failed") == paged(database, job, 1, status="failed") == [1, 2]


def test_a_job_whose_items_all_failed_has_a_ranking_too(database, scored):
    assert streamed(database, scored([(0, FAIL)] * 4)) == [0, 1, 2, 3]
    assert paged(database, scored([(0, FAIL)] * 4, top_k=2), 3) == []


def test_items_that_a_cancel_overtook_come_last(database, create, claim, save, read):
    job = create(4)
    save(claim(job, 1))
    with database.begin() as connection:
        jobs.cancel(connection, job.id, client_id=None)
    assert streamed(database, read(job)) == [2, 3, 0, 1]


def test_ties_go_by_place(database, scored):
    assert streamed(database, scored([(0, 0.5)] * 10), size=4) == list(range(10))


def test_the_best_of_places_is_what_sorting_says():
    rng = np.random.default_rng(0)
    places = rankings.Places(
        rng.integers(0, 5, 300), rng.integers(0, 9, 300).astype(float), np.arange(300), np.zeros(300, np.int64)
    )
    order = np.lexsort((places.positions, places.losses, places.query_nos))
    assert places.best(50, None).positions.tolist() == order[:50].tolist()
    top = places.best(1_000, 3)
    assert [int((top.query_nos == query).sum()) for query in range(5)] == [3] * 5
