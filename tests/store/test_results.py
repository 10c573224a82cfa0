"""Results are read back in input order, complete, page by page or streamed; SQL sees the same."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from sqlalchemy import text

from core.results import softmax
from store import jobs, results


def read_all(database, job, limit):
    position, found = 0, []
    while position is not None:
        with database.begin() as connection:
            page = results.page(connection, job, position=position, limit=limit)
        found += page.items
        if position == page.next_position:
            return found
        position = page.next_position
    return found


@pytest.fixture
def finished(create, claim, save, read):
    """A job of seven items in chunks of three, saved last chunk first, every logprob different."""
    job = create(7, chunk_items=3)
    for chunk_no in (2, 0, 1):
        mine = claim(job, chunk_no)
        base = mine.first_index
        save(
            mine,
            label_logprobs=[-(base + place + half / 2 + 1.25) for place in range(mine.num_items) for half in (0, 1)],
            item_ids=[f"id-{base + place}" for place in range(mine.num_items)],
            errors=[None] * (mine.num_items - 1) + ["non_finite_score"] if chunk_no == 1 else None,
            tokens_dropped=[5] + [0] * (mine.num_items - 1) if chunk_no == 0 else None,
        )
    return read(job)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 1000])
def test_pages_of_any_size_hold_every_item_once_in_order(database, finished, limit):
    found = read_all(database, finished, limit)
    assert [item.index for item in found] == list(range(7))
    assert [item.id for item in found] == [f"id-{index}" for index in range(7)]
    for item in found:
        if item.index == 5:
            assert (item.score, item.probabilities, item.label_mass, item.error) == (
                None,
                None,
                None,
                "non_finite_score",
            )
        else:
            pair = [-(item.index + 1.25), -(item.index + 1.75)]
            assert item.probabilities == pytest.approx(softmax(pair))
            assert item.score == item.probabilities[0]
            assert item.label_mass == pytest.approx(sum(map(math.exp, pair)))
    assert (found[0].truncated, found[0].tokens_dropped) == (True, 5)


@pytest.mark.parametrize("position", range(8))
def test_a_stream_from_any_position_holds_the_rest(database, finished, position):
    found = [item.index for some in results.stream(database, finished, position=position) for item in some.to_items()]
    assert found == list(range(position, 7))


def test_a_status_filters_pages_and_streams(database, finished):
    with database.begin() as connection:
        failed = results.page(connection, finished, position=0, limit=10, status="failed")
    assert [item.index for item in failed.items] == [5]
    streamed = [
        item.index for some in results.stream(database, finished, status="succeeded") for item in some.to_items()
    ]
    assert streamed == [0, 1, 2, 3, 4, 6]


def test_while_a_job_runs_the_finished_prefix_is_read_and_continued_where_it_ended(database, create, claim, save, read):
    job = create(6, chunk_items=2)
    save(claim(job, 2))
    with database.begin() as connection:
        nothing = results.page(connection, read(job), position=0, limit=10)
    assert (nothing.items, nothing.next_position) == ([], 0)
    save(claim(job, 0))
    with database.begin() as connection:
        some = results.page(connection, read(job), position=0, limit=10)
    assert ([item.index for item in some.items], some.next_position) == ([0, 1], 2)
    save(claim(job, 1))
    with database.begin() as connection:
        rest = results.page(connection, read(job), position=some.next_position, limit=10)
    assert ([item.index for item in rest.items], rest.next_position) == ([2, 3, 4, 5], None)


def test_items_that_a_cancel_overtook_are_listed_with_their_ids_and_the_reason(database, create, claim, save, read):
    job = create(4)
    save(claim(job, 1))
    with database.begin() as connection:
        jobs.cancel(connection, job.id, client_id=None)
    found = read_all(database, read(job), 3)
    assert [(item.index, item.id, item.error) for item in found][:2] == [
        (0, "id-0", "job_cancelled"),
        (1, "id-1", "job_cancelled"),
    ]
    assert [item.error for item in found][2:] == [None, None]


def test_the_view_shows_sql_what_the_interface_shows_readers(database, finished):
    expected = read_all(database, finished, 100)
    with database.begin() as connection:
        rows = connection.execute(
            text("SELECT * FROM result_items WHERE job_id = :job_id ORDER BY index"), {"job_id": finished.id}
        ).all()
    assert [(row.index, row.error, row.tokens_dropped) for row in rows] == [
        (item.index, item.error, item.tokens_dropped) for item in expected
    ]
    for row, item in zip(rows, expected, strict=True):
        assert row.score == (None if item.score is None else pytest.approx(item.score))
        assert row.label_mass == (None if item.label_mass is None else pytest.approx(item.label_mass))


def test_items_with_different_numbers_of_labels_keep_their_own(database, create, claim, save, read):
    job = create(2, parameters={"apply_softmax": False})
    save(claim(job), label_logprobs=[-1.0, -math.inf, -3.0, -1e4, -2.0], label_offsets=[0, 2, 5])
    found = read_all(database, read(job), 10)
    assert found[0].probabilities == pytest.approx([math.exp(-1), 0])
    assert found[1].probabilities == pytest.approx([math.exp(-3), 0, math.exp(-2)])
    with database.begin() as connection:
        rows = connection.execute(text("SELECT probabilities FROM result_items ORDER BY index")).scalars().all()
    assert rows[0] == pytest.approx([math.exp(-1), 0])
    assert rows[1] == pytest.approx([math.exp(-3), 0, math.exp(-2)])


def test_a_job_that_was_cancelled_since_its_reader_looked_is_read_as_it_is_now(database, create, claim, save, read):
    job = create(4)
    save(claim(job, 0))
    seen = read(job)
    with database.begin() as connection:
        jobs.cancel(connection, job.id, client_id=None)
    found = [item.error for some in results.stream(database, seen) for item in some.to_items()]
    assert found == [None, None, "job_cancelled", "job_cancelled"]


def test_a_filter_reads_no_chunk_that_can_hold_nothing_of_it(database, create, claim, save, read):
    job = create(6)
    for chunk_no in range(3):
        save(claim(job, chunk_no), errors=[None, "non_finite_score"] if chunk_no == 1 else None)
    streamed = list(results.stream(database, read(job), status="failed"))
    assert [some.indexes.tolist() for some in streamed] == [[3]]


@pytest.mark.parametrize(("index", "position"), [(0, 0), (4, 0), (5, 1), (6, 1), (9, 2), (20, 3), (31, 4), (99, 4)])
def test_items_of_a_retry_are_found_by_the_index_they_keep(index, position, database, create, claim, save, read):
    job = create(4)
    for chunk_no, indexes in enumerate(([5, 9], [20, 31])):
        save(claim(job, chunk_no), item_indexes=indexes)
    retried = replace(read(job), retry_of=job.id)
    assert results.position_after(database.begin, retried, index) == position
    streamed = [index for some in results.stream(database, retried, position=position) for index in some.indexes]
    assert streamed == [5, 9, 20, 31][position:]


def test_a_position_of_any_other_job_follows_its_index(database, finished):
    assert [results.position_after(database.begin, finished, index) for index in (0, 5, 6, 7, 99)] == [1, 6, 7, 7, 7]
