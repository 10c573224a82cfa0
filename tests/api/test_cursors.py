"""Cursors: good for the list that gave them out, and for nothing else."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.cursors import (
    deliveries_before,
    deliveries_cursor,
    endpoints_before,
    endpoints_cursor,
    jobs_before,
    jobs_cursor,
    ranking_cursor,
    ranking_position,
    results_cursor,
    results_position,
)
from core.errors import Refused

JOB, ANOTHER = UUID(int=1), UUID(int=2)


@given(st.uuids(), st.integers(0, 2**63))
def test_a_position_comes_back_from_its_cursor(job_id, position):
    assert results_position(results_cursor(job_id, position), job_id, num_items=position) == position


@given(st.uuids())
def test_a_job_comes_back_from_its_cursor(job_id):
    assert jobs_before(jobs_cursor(job_id)) == job_id


def test_without_a_cursor_a_list_begins_at_its_beginning():
    assert results_position(None, JOB, num_items=3) == 0
    assert jobs_before(None) is None


@given(st.text())
def test_no_text_is_taken_for_a_cursor(text):
    for read in (lambda: results_position(text, JOB, num_items=3), lambda: jobs_before(text)):
        with pytest.raises(Refused) as refused:
            read()
        assert (refused.value.code, refused.value.status) == ("invalid_cursor", 400)


@pytest.mark.parametrize(
    "cursor",
    [
        results_cursor(ANOTHER, 1),
        results_cursor(JOB, 4),
        jobs_cursor(JOB),
        results_cursor(JOB, 1) + "=",
        results_cursor(JOB, 1) + "\n",
        results_cursor(JOB, 1)[:-1],
        results_cursor(JOB, 0) + "A",  # more than its bytes
        " " + results_cursor(JOB, 1),
    ],
    ids=[
        "another job's",
        "past the end",
        "of jobs",
        "padded",
        "with a line end",
        "cut",
        "longer",
        "with a blank",
    ],
)
def test_a_cursor_that_was_not_given_out_for_this_job_is_refused(cursor):
    with pytest.raises(Refused):
        results_position(cursor, JOB, num_items=3)


def test_a_cursor_of_results_is_none_of_jobs():
    with pytest.raises(Refused):
        jobs_before(results_cursor(JOB, 1))


ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
MADE = {
    "results": (results_cursor(JOB, 5), lambda cursor: results_position(cursor, JOB, num_items=2**40)),
    "ranking": (ranking_cursor(JOB, 5), lambda cursor: ranking_position(cursor, JOB, num_items=2**40)),
    "jobs": (jobs_cursor(JOB), jobs_before),
    "endpoints": (endpoints_cursor(JOB), endpoints_before),
    "deliveries": (deliveries_cursor(JOB), deliveries_before),
}


@pytest.mark.parametrize("kind", MADE)
@given(st.data())
def test_a_cursor_with_another_character_anywhere_is_refused(kind, data):
    cursor, read = MADE[kind]
    place = data.draw(st.integers(0, len(cursor) - 1))
    other = data.draw(st.sampled_from(ALPHABET.replace(cursor[place], "")))
    with pytest.raises(Refused) as refused:
        read(cursor[:place] + other + cursor[place + 1 :])
    assert (refused.value.code, refused.value.status) == ("invalid_cursor", 400)


@pytest.mark.parametrize("kind", MADE)
@given(st.data())
def test_a_cursor_that_was_cut_lengthened_or_shuffled_is_refused(kind, data):
    cursor, read = MADE[kind]
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(cursor)), st.integers(0, len(cursor)))))
    changed = cursor[:start] + data.draw(st.text(ALPHABET, max_size=8)) + cursor[stop:]
    if changed != cursor:
        with pytest.raises(Refused):
            read(changed)
