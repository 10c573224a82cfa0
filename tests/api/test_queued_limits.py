"""No way in passes the limits of what is queued, and each is open again once there is room."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import UUID

import pytest
from cards import FAKE_CARD
from fake_scoring import score_chunk
from sqlalchemy import text
from ways_in import ITEM, NDJSON, WAYS, as_json, as_lines, as_scoring, assert_refused, body_of, front_ends, num_rows

from api import admission
from core.chunks import ChunkKey
from store import model_cards, workers
from store.workers import WorkerInfo

MAX_TOKENS = 1_000


@pytest.fixture
def limited(serving, api_settings, database, database_url):
    """Serve a front end with these settings over a ledger of its own; a client of it."""
    yield from front_ends(serving, api_settings, database, database_url)


@pytest.fixture
def rows(database):
    return lambda: num_rows(database)


@pytest.fixture
def finish(database):
    """Score every chunk of a job, and let the front end forget what it has measured."""

    def finish(job, *, failing=()):
        for number in range(1 + job["counts"]["total"] // 1_000):
            score_chunk(database, ChunkKey(UUID(job["id"]), number), failing=failing)
        time.sleep(admission.BACKLOG_SECONDS)

    return finish


LIMITS = {
    "max_queued_tokens_per_client": (MAX_TOKENS, 429, "backlog_full", "1,000 tokens of yours"),
    "max_queued_bytes_per_client": (3_600, 429, "backlog_full", "3,600 bytes of yours"),
    "max_queued_tokens_total": (MAX_TOKENS, 503, "total_backlog_full", "1,000 tokens of all clients"),
    "max_queued_bytes_total": (3_600, 503, "total_backlog_full", "3,600 bytes of all clients"),
}


@pytest.mark.parametrize("setting", LIMITS)
def test_every_way_in_is_refused_past_the_limit_and_open_again_once_there_is_room(setting, limited, finish, rows):
    maximum, status, code, words = LIMITS[setting]
    api = limited(**{setting: maximum}, answer_timeout_seconds=0.3)
    job = as_json(api, 100).json()
    before = rows()
    for post in WAYS.values():
        answer = post(api, 1)
        assert_refused(answer, status, code, words, f"RANKMILL_{setting.upper()}", f"{maximum:,}")
    failed = rows()[0] - before[0]
    assert failed == 1, "the upload that broke"
    assert rows()[1] == before[1], "nothing of it is kept"
    finish(job)
    assert as_json(api, 1).status_code == 202
    assert as_lines(api, 1).status_code == 202
    assert as_scoring(api, 1).status_code == 504, "taken; nobody scores it"


@pytest.mark.parametrize("setting", LIMITS)
def test_a_limit_of_zero_is_none(setting, limited):
    api = limited(**{setting: 0})
    assert as_json(api, 300).status_code == 202
    assert as_lines(api, 300).status_code == 202


def test_an_upload_past_the_limit_is_refused_before_its_items_are_read(limited, rows):
    api = limited(max_queued_tokens_per_client=MAX_TOKENS)
    as_json(api, 100)
    api_of_another = limited(max_queued_tokens_per_client=MAX_TOKENS - 1)
    before = rows()

    def body():
        yield b"{}\n"
        yield body_of(1)[3:]
        time.sleep(1)
        yield b'"never read"\n'

    begin = time.monotonic()
    answer = api_of_another.post("/v1/jobs", content=body(), headers=NDJSON)
    assert_refused(answer, 429, "backlog_full")
    assert time.monotonic() - begin < 3
    assert rows() == before


def test_an_upload_that_passes_the_limit_on_its_way_ends_with_the_line_and_frees_its_room(limited, rows, finish):
    api = limited(max_queued_tokens_per_client=100_000)
    first = as_lines(api, 2_000).json()
    before = rows()
    answer = as_lines(api, 12_000)
    assert_refused(answer, 429, "backlog_full", "20,000 tokens of yours", "RANKMILL_MAX_QUEUED_TOKENS_PER_CLIENT")
    assert answer.json()["line"] > 8_000
    job = api.get("/v1/jobs?limit=1").json()["items"][0]
    assert (job["status"], job["counts"]["total"]) == ("failed", 0)
    assert (job["error"]["code"], job["error"]["cause"]) == ("upload_incomplete", "backlog_full")
    assert job["error"]["line"] == answer.json()["line"]
    assert rows() == [before[0] + 1, before[1]]
    finish(first)
    assert as_lines(api, 9_900).status_code == 202, "what broke off is not queued any more"


def test_an_upload_that_never_fits_is_told_so(limited):
    answer = as_lines(limited(max_queued_tokens_per_client=100_000), 12_000)
    assert_refused(answer, 429, "backlog_full", "in parts")
    assert answer.headers["Retry-After"] == "3600"


def test_a_retry_is_refused_past_the_limit_and_leaves_nothing(limited, finish, rows):
    api = limited(max_queued_tokens_per_client=MAX_TOKENS)
    failed = as_json(api, 90).json()
    finish(failed, failing=range(90))
    full = as_json(api, 50).json()
    before = rows()
    answer = api.post(f"/v1/jobs/{failed['id']}/retry")
    assert_refused(answer, 429, "backlog_full", "500 tokens of yours", "this job has 900")
    assert rows() == before
    finish(full)
    again = api.post(f"/v1/jobs/{failed['id']}/retry")
    assert again.status_code == 202
    as_json(api, 10)
    assert api.post(f"/v1/jobs/{failed['id']}/retry").json()["id"] == again.json()["id"], "it is there already"


def test_a_clients_own_limit_replaces_the_setting(limited, database):
    with database.begin() as connection:
        connection.execute(text("UPDATE clients SET max_queued_tokens = 50"))
    api = limited()
    assert as_json(api, 5).status_code == 202
    assert_refused(as_json(api, 1), 429, "backlog_full", "clients.max_queued_tokens")


def test_it_is_worth_coming_back_when_the_surplus_is_scored_at_the_workers_rate(limited, database):
    api = limited(max_queued_tokens_per_client=MAX_TOKENS)
    as_json(api, 100)
    assert as_json(api, 30).headers["Retry-After"] == "60", "no rate is known"
    with database.begin() as connection:
        workers.register(connection, WorkerInfo("one", "host", 1, "fake", 16, "ready"))
        rate = {"rate": {"tokens_per_second": 25, "chunks_per_second": 1}}
        connection.execute(text("UPDATE workers SET details = :d"), {"d": json.dumps(rate)})
    assert as_json(api, 30).headers["Retry-After"] == "12"


def test_the_surplus_of_all_drains_at_the_rates_of_all_models_that_are_waited_for(limited, database):
    with database.begin() as connection:
        model_cards.publish(connection, replace(FAKE_CARD, name="other"), None)
        for model, rate in (("fake", 25), ("other", 75), ("idle", 1_000)):
            workers.register(connection, WorkerInfo(model, "host", 1, model, 16, "ready"))
            details = {"rate": {"tokens_per_second": rate, "chunks_per_second": 1}}
            connection.execute(
                text("UPDATE workers SET details = :d WHERE owner = :o"), {"d": json.dumps(details), "o": model}
            )
    api = limited(max_queued_tokens_total=MAX_TOKENS)
    for model in ("fake", "other"):
        assert api.post("/v1/jobs", json={"model": model, "items": [ITEM] * 50}).status_code == 202
    answer = api.post("/v1/jobs", json={"model": "fake", "items": [ITEM] * 30})
    assert_refused(answer, 503, "total_backlog_full")
    assert answer.headers["Retry-After"] == "3"


def test_jobs_that_come_at_once_pass_the_limit_by_little(limited, database):
    api = limited(max_queued_tokens_per_client=MAX_TOKENS)
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda _: as_json(api, 10).status_code, range(60)))
    assert set(statuses) == {202, 429}
    assert 10 <= statuses.count(202) <= 15, "a measure may come between an answer and its commit"
