"""Submitting over HTTP."""

from __future__ import annotations


def test_a_job_is_accepted_with_its_place_and_a_time_to_look_again(api):
    answer = api.post("/v1/jobs", json={"items": ["a", "b"], "query": "q "})

    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert answer.headers["retry-after"] == "1"
    assert job["status"] == "queued"


def test_a_client_that_waits_gets_the_results_of_a_job_that_ends_in_time(api, scorer):
    answer = api.post("/v1/jobs", json={"items": ["a", "b"]}, headers={"Prefer": "wait=10"})

    assert answer.status_code == 200
    assert answer.headers["preference-applied"] == "wait=10"
    assert answer.json()["status"] == "completed"
    assert len(answer.json()["results"]) == 2
    assert answer.json()["next_cursor"] is None
