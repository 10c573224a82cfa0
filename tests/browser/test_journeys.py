"""What people come to the dashboard for, each from the first click to what they wanted to see."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from store import workers
from store.workers import WorkerInfo

PATIENCE_MS = 30_000
FOCUSED = "document.activeElement.matches('a, button, summary') ? document.activeElement.textContent : ''"
expect.set_options(timeout=PATIENCE_MS)


def thousands(number):
    return [f"item {n}" for n in range(number * 1_000)]


def test_a_first_visit_finds_no_jobs_and_the_way_to_try_it(page):
    page.goto("/")
    expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()
    page.get_by_role("main").get_by_role("link", name="Try it").click()
    expect(page.get_by_role("heading", name="Try it")).to_be_visible()


def test_trying_it_shows_the_items_in_the_order_of_their_scores(page, site):
    with site.worker():
        page.goto("/try")
        page.get_by_role("textbox", name="Query").fill("which is best? ")
        page.get_by_label("Items, one a line").fill("the first\nthe second\n\nthe third")
        page.get_by_role("button", name="Score").click()
        places = page.locator(".ranking li .item")
        expect(places).to_have_count(3)
    assert {text.strip() for text in places.all_inner_texts()} == {"the first", "the second", "the third"}
    scores = [float(text) for text in page.locator(".ranking p strong").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)
    assert page.locator(".probabilities meter").count() == 6
    expect(page.get_by_label("Items, one a line")).to_have_value("the first\nthe second\nthe third")


def test_a_form_that_is_refused_says_why_and_keeps_what_was_typed(page, complaints):
    complaints.expected.append("status of 422")
    page.goto("/try")
    page.get_by_label("Items, one a line").fill("x")
    page.get_by_label("Labels").fill("more than one token, another")
    page.get_by_role("button", name="Score").click()
    expect(page.get_by_role("alert")).to_contain_text("labels")
    expect(page.get_by_label("Items, one a line")).to_have_value("x")


def test_progress_moves_without_a_reload_until_the_job_has_ended(page, site):
    job_id = site.submit(thousands(3))
    page.goto("/")
    page.get_by_role("table").get_by_role("link").first.click()
    page.evaluate("window.isStillTheSame = true")
    progress = page.locator("#progress")
    expect(progress).to_contain_text("queued")
    site.score(job_id, chunk_nos=[0])
    expect(progress).to_contain_text("running")
    expect(progress).to_contain_text("33.3 %")
    site.score(job_id, chunk_nos=[1, 2])
    expect(progress).to_contain_text("completed")
    expect(page.get_by_role("img", name=re.compile("score; mean"))).to_be_visible()
    expect(page.locator("#actions")).not_to_contain_text("Cancel")
    assert page.evaluate("window.isStillTheSame")


def test_the_list_shows_new_jobs_and_their_progress_without_a_reload(page, site):
    page.goto("/")
    expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()
    page.evaluate("window.isStillTheSame = true")
    job_id = site.submit(thousands(2), metadata={"name": "the new one"})
    expect(page.get_by_role("row", name=re.compile("the new one"))).to_contain_text("queued")
    site.score(job_id, chunk_nos=[0])
    expect(page.get_by_role("row", name=re.compile("the new one"))).to_contain_text("50.0 %")
    assert page.evaluate("window.isStillTheSame")
    page.get_by_role("navigation", name="Status").get_by_role("link", name="failed").click()
    expect(page.get_by_text("No such jobs")).to_be_visible()
    page.get_by_role("navigation", name="Status").get_by_role("link", name="open").click()
    expect(page.get_by_role("row", name=re.compile("the new one"))).to_be_visible()


def test_a_job_is_cancelled_after_a_question(page, site):
    job_id = site.submit(thousands(2))
    site.score(job_id, chunk_nos=[0])
    page.goto(f"/jobs/{job_id}")
    expect(page.get_by_role("button", name="Cancel this job")).to_be_hidden()
    page.get_by_text("Cancel…").click()
    page.get_by_role("button", name="Cancel this job").click()
    expect(page.get_by_role("status")).to_contain_text("finished results stay")
    expect(page.locator("#progress")).to_contain_text("cancelled")
    assert site.sql("SELECT state FROM jobs WHERE id = %s", job_id) == ["cancelled"]


def test_what_failed_is_retried_as_a_job_of_its_own_and_both_lead_to_each_other(page, site):
    job_id = site.submit(thousands(1))
    site.score(job_id, failing={3, 7})
    page.goto(f"/jobs/{job_id}")
    page.get_by_text("Retry…").click()
    page.get_by_role("button", name="Retry these items").click()
    page.wait_for_url(re.compile("note=retried"))
    assert job_id not in page.url
    expect(page.locator("#progress")).to_contain_text("queued")
    page.locator("#said").get_by_role("link").click()
    expect(page.get_by_role("link", name="Its retry")).to_be_visible()


def test_results_are_sorted_filtered_and_paged(page, site):
    job_id = site.submit(thousands(1))
    site.score(job_id, failing={3, 7})
    page.goto(f"/jobs/{job_id}")
    page.get_by_role("link", name="Results").click()
    first = page.locator("tbody tr").first
    expect(first).to_contain_text("0")
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("tbody th").first).to_have_text("50")
    page.get_by_label("Order").select_option("score")
    page.wait_for_url(re.compile("order=score"))
    scores = [float(text) for text in page.locator("tbody strong").all_inner_texts()]
    assert len(scores) == 50
    assert scores == sorted(scores, reverse=True)
    page.get_by_label("Status").select_option("failed")
    page.wait_for_url(re.compile("status=failed"))
    expect(page.locator("tbody th")).to_have_text(["3", "7"])


def test_results_are_downloaded_with_the_filter_of_the_page(page, site):
    job_id = site.submit(thousands(1))
    site.score(job_id, failing={3, 7})
    page.goto(f"/jobs/{job_id}/results?status=failed")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == f"{job_id}.csv"
    with Path(download.value.path()).open(newline="") as file:
        assert [row["index"] for row in csv.DictReader(file)] == ["3", "7"]


def test_the_text_of_a_failed_item_is_shown_on_request_and_a_scored_ones_is_gone(page, site):
    job_id = site.submit(["good", "the bad one"])
    site.score(job_id, failing={1})
    page.goto(f"/jobs/{job_id}")
    expect(page.get_by_role("main")).not_to_contain_text("the bad one")
    page.get_by_role("link", name="Show the text of item 1").click()
    expect(page.locator("#text")).to_have_text("the bad one")
    other = site.submit(["good"])
    site.score(other)
    page.goto(f"/jobs/{other}/items/0")
    expect(page.get_by_text("It is gone")).to_be_visible()


def test_workers_tell_their_device_their_batches_and_their_speed(page, site):
    info = WorkerInfo("owner", "host-1", 42, "fake", 16)
    details = {
        "device": "NVIDIA H200",
        "max_batch_tokens": 1_000,
        "num_batches": 10,
        "num_items": 500,
        "num_tokens": 9_000,
        "num_padding_tokens": 1_000,
        "num_cached_tokens": 3_000,
        "rate": {"tokens_per_second": 1234.0, "chunks_per_second": 2.0, "chunk_seconds": 0.5},
        "num_engine_restarts": 3,
    }
    with site.database.begin() as connection:
        workers.register(connection, info)
        workers.heartbeat(connection, "owner", state="ready", details=details)
    page.goto("/")
    page.get_by_role("link", name="Workers").click()
    for text in (
        "ready",
        "NVIDIA H200",
        "1,234 tokens/s",
        "900 tokens, 50 items, 70.0 % of its budget",
        "14.3 %",
        "33.3 %",
    ):
        expect(page.locator("#workers")).to_contain_text(text)


@pytest.fixture
def given_up(site):
    """A delivery that nobody took, of an endpoint that is disabled; its id."""
    job_id = site.submit(webhook_url="https://receiver.example/hook")
    site.score(job_id)
    site.sql("UPDATE deliveries SET state = 'given_up', attempts = 10, finished_at = now()")
    site.sql(
        "INSERT INTO delivery_attempts (delivery_id, attempt, status, latency_seconds, response)"
        " SELECT id, 10, 500, 0.25, '<b>broken</b>' FROM deliveries"
    )
    site.sql("UPDATE webhook_endpoints SET disabled_at = now(), disabled_reason = 'failing', last_status = 500")
    return str(site.sql("SELECT id FROM deliveries")[0])


def test_a_disabled_endpoint_is_enabled_tested_and_sent_again_what_it_missed(page, site, given_up):
    page.goto("/webhooks")
    page.get_by_role("link", name="receiver.example").click()
    expect(page.get_by_role("main")).to_contain_text("disabled")
    page.get_by_role("button", name="Enable").click()
    expect(page.get_by_role("status")).to_contain_text("sent there again")
    page.get_by_role("button", name="Send a test event").click()
    expect(page.locator("#deliveries")).to_contain_text("webhook.test")
    page.get_by_role("link", name="job.completed").click()
    page.get_by_text("What it answered").click()
    expect(page.locator("pre")).to_have_text("<b>broken</b>")
    page.get_by_role("button", name="Send it again").click()
    expect(page.locator("#delivery")).to_contain_text("pending")
    assert site.sql("SELECT state FROM deliveries WHERE id = %s", given_up) == ["pending"]


def test_a_job_is_found_cancelled_and_left_with_the_keyboard_alone(page, site):
    job_id = site.submit(thousands(1))
    page.goto("/")

    def tab_to(name):
        for _ in range(40):
            page.keyboard.press("Tab")
            if name in page.evaluate(FOCUSED):
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline == "solid", f"{name} shows no focus"
                return
        pytest.fail(f"{name} can't be reached with the keyboard")

    tab_to("Skip to the content")
    page.keyboard.press("Enter")
    tab_to(job_id[:8])
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{job_id}")
    tab_to("Cancel…")
    page.keyboard.press("Enter")
    tab_to("Cancel this job")
    page.keyboard.press("Enter")
    expect(page.locator("#progress")).to_contain_text("cancelled")
    tab_to("Jobs")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
