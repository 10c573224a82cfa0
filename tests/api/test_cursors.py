"""Cursors: good for the list that gave them out, and for nothing else."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.cursors import jobs_before, jobs_cursor, results_cursor, results_position
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
        results_cursor(JOB, 0)[:-1] + "B",  # the same bytes, written otherwise
        " " + results_cursor(JOB, 1),
    ],
    ids=[
        "another job's",
        "past the end",
        "of jobs",
        "padded",
        "with a line end",
        "cut",
        "not canonical",
        "with a blank",
    ],
)
def test_a_cursor_that_was_not_given_out_for_this_job_is_refused(cursor):
    with pytest.raises(Refused):
        results_position(cursor, JOB, num_items=3)


def test_a_cursor_of_results_is_none_of_jobs():
    with pytest.raises(Refused):
        jobs_before(results_cursor(JOB, 1))
