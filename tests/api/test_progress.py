"""Progress and entity tags, as functions of a job and a time."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from api.answers import job_answer
from api.etags import etag, is_known
from api.progress import to_progress
from core.jobs import Counts, Job, JobParameters, Usage
from core.states import JobState

T0 = datetime(2026, 11, 30, tzinfo=UTC)
JOB = Job(
    id=UUID(int=1),
    client_id=UUID(int=2),
    state=JobState.RUNNING,
    parameters=JobParameters(model="fake", query=None, label_token_ids=[0, 1]),
    template_version="none/1",
    counts=Counts(100, 60, 30, 10, 0),
    usage=Usage(7, 3),
    warnings=[],
    error=None,
    metadata={},
    webhook_url=None,
    retry_of=None,
    created_at=T0,
    started_at=T0,
    finished_at=None,
    expires_at=None,
)


def no_constants(name):
    raise AssertionError(f"{name} is not JSON")


def test_a_running_jobs_rate_is_its_mean_and_says_when_it_may_end():
    progress = to_progress(JOB, T0 + timedelta(seconds=8))
    assert (progress.fraction, progress.items_per_second, progress.eta_seconds) == (0.4, 5.0, 12.0)


def test_what_the_workers_rate_says_comes_before_the_jobs_own_rate():
    assert to_progress(replace(JOB, eta_seconds=77.0), T0 + timedelta(seconds=8)).eta_seconds == 77.0
    queued = replace(JOB, state=JobState.QUEUED, started_at=None, eta_seconds=77.0)
    assert to_progress(queued, T0).eta_seconds == 77.0
    ended = replace(JOB, state=JobState.COMPLETED, finished_at=T0 + timedelta(seconds=4), eta_seconds=77.0)
    assert to_progress(ended, T0).eta_seconds == 0.0


def test_what_is_not_known_is_none():
    queued = replace(JOB, state=JobState.QUEUED, started_at=None, counts=Counts(2, 2, 0, 0, 0))
    progress = to_progress(queued, T0)
    assert (progress.fraction, progress.items_per_second, progress.eta_seconds) == (0.0, None, None)


def test_a_clock_behind_the_databases_gives_no_rate():
    assert to_progress(JOB, T0 - timedelta(seconds=1)).items_per_second is None
    assert to_progress(JOB, T0).items_per_second is None


def test_an_ended_jobs_progress_does_not_change_any_more():
    ended = replace(
        JOB, state=JobState.CANCELLED, counts=Counts(100, 0, 30, 10, 60), finished_at=T0 + timedelta(seconds=4)
    )
    first, later = (to_progress(ended, T0 + timedelta(days=days)) for days in (1, 2))
    assert first == later
    assert (first.fraction, first.items_per_second, first.eta_seconds) == (1.0, 10.0, 0.0)


@given(
    st.integers(0, 10**7),
    st.integers(0, 10**7),
    st.integers(0, 10**7),
    st.floats(0, 1e9),
    st.booleans(),
)
def test_no_number_of_a_job_is_anything_but_json(pending, succeeded, failed, seconds, has_ended):
    now = T0 + timedelta(seconds=seconds)
    job = replace(
        JOB,
        counts=Counts(pending + succeeded + failed, pending, succeeded, failed, 0),
        finished_at=now if has_ended else None,
    )
    encoded = json.loads(msgspec.json.encode(job_answer(job, now)), parse_constant=no_constants)
    assert 0 <= encoded["progress"]["fraction"] <= 1
    assert all(number is None or number >= 0 for number in encoded["progress"].values())


def test_equal_tags_mean_equal_representations():
    moments = [T0 + timedelta(milliseconds=250 * step) for step in range(1, 200)]
    jobs = [JOB, replace(JOB, counts=Counts(100, 59, 31, 10, 0)), replace(JOB, state=JobState.QUEUED, started_at=None)]
    jobs += [replace(JOB, eta_seconds=seconds) for seconds in (0.0, 12.0, 13.0)]
    seen = {}
    for job in jobs:
        for now in moments:
            body = msgspec.json.encode(job_answer(job, now))
            assert seen.setdefault(etag(job, now), body) == body
    assert len(jobs) <= len(seen) < len(moments) * len(jobs) / 2


def test_a_tag_is_known_in_a_list_and_in_its_weak_form():
    assert is_known('"a"', '"a"')
    assert is_known('"a"', 'W/"a"')
    assert is_known('"a"', '"b" , "a"')
    assert is_known('"a"', "*")
    assert not is_known('"a"', "")
    assert not is_known('"a"', '"b"')
    assert not is_known('"a"', "a")
