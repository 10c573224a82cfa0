"""What a job says of its webhook: the delivery that tells how it went, and why it is not sent."""

from __future__ import annotations

import pytest
from sqlalchemy import text


@pytest.fixture
def endpoints(ledger):
    """Change every endpoint of the URL."""

    def change(url, reason):
        with ledger.begin() as connection:
            connection.execute(
                text(
                    "UPDATE webhook_endpoints SET disabled_reason = CAST(:reason AS text),"
                    " disabled_at = CASE WHEN CAST(:reason AS text) IS NOT NULL THEN now() END WHERE url = :url"
                ),
                {"url": url, "reason": reason},
            )

    return change


def test_an_ended_job_leads_to_its_delivery(api, submit):
    job = submit(["a"], webhook_url="https://receiver.example/links")
    assert job["links"]["delivery"] is None
    ended = api.post(job["links"]["cancel"]).json()
    seen = api.get(job["links"]["self"]).json()
    assert seen["links"]["delivery"] is not None
    assert ended["id"] == seen["id"]
    delivery = api.get(seen["links"]["delivery"]).json()
    assert (delivery["job_id"], delivery["event"]) == (job["id"], "job.cancelled")
    assert seen["warnings"] == []
    (listed,) = [one for one in api.get("/v1/jobs").json()["items"] if one["id"] == job["id"]]
    assert listed["links"] == seen["links"]


def test_a_job_without_a_webhook_has_none(api, submit):
    job = submit(["a"])
    api.post(job["links"]["cancel"])
    assert api.get(job["links"]["self"]).json()["links"]["delivery"] is None


def test_a_job_whose_endpoint_is_disabled_says_so_from_the_first_answer_on(api, submit, endpoints):
    url = "https://receiver.example/disabled"
    api.post(submit(["a"], webhook_url=url)["links"]["cancel"])
    endpoints(url, "gone")
    job = submit(["a"], webhook_url=url)
    (warning,) = job["warnings"]
    assert warning.startswith("webhook_endpoint_disabled: the webhook of this job will not be sent")
    before = api.get(job["links"]["self"])
    api.post(job["links"]["cancel"])
    after = api.get(job["links"]["self"])
    (warning,) = after.json()["warnings"]
    assert warning.startswith("webhook_endpoint_disabled: the webhook of this job was not sent")
    assert before.headers["etag"] != after.headers["etag"]
    assert api.get(after.json()["links"]["delivery"]).json()["status"] == "given_up"
    endpoints(url, None)
    (warning,) = api.get(job["links"]["self"]).json()["warnings"]
    assert warning.startswith("webhook_given_up")
    assert api.post(after.json()["links"]["delivery"] + "/redeliver").status_code == 202
    assert api.get(job["links"]["self"]).json()["warnings"] == []
