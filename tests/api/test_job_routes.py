"""Jobs over HTTP: looked at, listed, cancelled, deleted."""

from __future__ import annotations

import pytest


def test_a_job_is_read_back_as_it_was_answered(api, submit):
    job = submit()
    assert api.get(job["links"]["self"]).json() == job


def test_a_jobs_id_may_be_written_in_capitals(api, submit):
    job = submit()
    assert api.get(f"/v1/jobs/{job['id'].upper()}").json() == job


def test_a_client_that_has_the_job_already_is_told_so(api, submit):
    path = submit()["links"]["self"]
    tag = api.get(path).headers["etag"]

    assert tag.startswith('"')
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        answer = api.get(path, headers={"If-None-Match": known})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert api.get(path, headers={"If-None-Match": '"x"'}).status_code == 200


def test_the_tag_changes_with_every_save_and_stays_once_the_job_has_ended(api, submit, score):
    job = submit(["a"] * 1_500)
    path = job["links"]["self"]
    tags = [api.get(path).headers["etag"]]
    for chunk_no in (0, 1):
        score(job, chunk_nos=[chunk_no])
        tags.append(api.get(path).headers["etag"])

    assert len(set(tags)) == 3
    assert api.get(path, headers={"If-None-Match": tags[-1]}).status_code == 304


def test_equal_tags_mean_equal_answers_while_a_job_runs(api, submit, score):
    job = submit(["a"] * 1_500)
    score(job, chunk_nos=[0])

    seen = {}
    for _ in range(50):
        answer = api.get(job["links"]["self"])
        assert seen.setdefault(answer.headers["etag"], answer.content) == answer.content


def test_progress_and_usage_grow_while_the_job_runs(api, submit, score):
    job = submit(["a"] * 1_500)
    score(job, chunk_nos=[0], failing={3})

    running = api.get(job["links"]["self"]).json()
    assert running["status"] == "running"
    assert running["counts"] == {"total": 1_500, "pending": 500, "succeeded": 999, "failed": 1, "cancelled": 0}
    assert running["progress"]["fraction"] == pytest.approx(2 / 3)
    assert running["progress"]["items_per_second"] > 0
    assert running["progress"]["eta_seconds"] >= 0
    assert running["usage"] == {"prompt_tokens": 999, "cached_tokens": 0, "total_tokens": 999}

    score(job, chunk_nos=[1])
    ended = api.get(job["links"]["self"]).json()
    assert ended["status"] == "completed"
    assert ended["progress"]["fraction"] == 1.0
    assert ended["progress"]["eta_seconds"] == 0.0


def test_a_cancelled_job_keeps_its_finished_results_and_can_be_cancelled_again(api, submit, score):
    job = submit(["a"] * 1_500)
    score(job, chunk_nos=[0])

    first, second = (api.post(job["links"]["cancel"]) for _ in range(2))

    assert first.status_code == second.status_code == 200
    assert first.json() == second.json()
    assert first.json()["status"] == "cancelled"
    assert first.json()["counts"] == {"total": 1_500, "pending": 0, "succeeded": 1_000, "failed": 0, "cancelled": 500}


def test_cancelling_a_completed_job_changes_nothing(api, submit, score):
    job = submit()
    score(job)
    completed = api.get(job["links"]["self"]).json()
    assert api.post(job["links"]["cancel"]).json() == completed
    assert completed["status"] == "completed"


def test_only_an_ended_job_can_be_deleted(api, submit):
    job = submit()
    path = job["links"]["self"]

    refused = api.delete(path)
    assert (refused.status_code, refused.json()["code"]) == (409, "job_not_ended")

    api.post(job["links"]["cancel"])
    deleted = api.delete(path)
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert api.get(path).status_code == 404
    assert api.get(job["links"]["results"]).status_code == 404
    assert api.delete(path).status_code == 404


def test_the_list_shows_the_newest_first_and_leads_to_the_end(api, submit):
    made = [submit()["id"] for _ in range(5)]

    seen, cursor = [], None
    while True:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = api.get("/v1/jobs", params=params).json()
        assert len(page["items"]) <= 2
        seen += [job["id"] for job in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break

    assert seen[:5] == made[::-1]
    assert len(seen) == len(set(seen))


def test_jobs_that_come_while_somebody_pages_do_not_shift_the_pages(api, submit):
    made = [submit()["id"] for _ in range(4)]
    first = api.get("/v1/jobs", params={"limit": 2}).json()
    submit()
    second = api.get("/v1/jobs", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [job["id"] for job in first["items"] + second["items"]] == made[::-1]


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "IQ", "é", "a" * 10_000, "\0"])
def test_a_cursor_that_the_list_did_not_give_out_is_refused(cursor, api):
    problem = api.get("/v1/jobs", params={"cursor": cursor})
    assert (problem.status_code, problem.json()["code"], problem.json()["field"]) == (400, "invalid_cursor", "cursor")


def test_the_job_is_there_after_the_front_end_has_restarted(api, submit, serving, api_settings):
    job = submit()
    with serving(api_settings) as url:
        assert api.get(url + job["links"]["self"]).json() == job
