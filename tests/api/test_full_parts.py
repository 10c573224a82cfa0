"""No way in takes a job while the database, its disk or Redis is nearly full."""

from __future__ import annotations

import time

import pytest
import redis
from ways_in import NDJSON, WAYS, as_json, assert_refused, body_of, front_ends, num_rows

from api import admission
from core.errors import Broken
from rankmill.embedded.valkey import Valkey


@pytest.fixture
def limited(serving, api_settings, database, database_url):
    """Serve a front end with these settings over a ledger of its own; a client of it."""
    yield from front_ends(serving, api_settings, database, database_url)


@pytest.fixture
def rows(database):
    return lambda: num_rows(database)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_taken_while_the_database_is_too_large(way, limited, rows):
    before = rows()
    answer = WAYS[way](limited(max_database_bytes=1_000_000), 1)
    assert_refused(answer, 503, "database_full", "RANKMILL_MAX_DATABASE_BYTES")
    assert rows() == before


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_taken_while_the_ledgers_disk_is_nearly_full(way, limited, rows, tmp_path):
    before = rows()
    answer = WAYS[way](limited(ledger_dir=str(tmp_path), min_free_disk_bytes=1 << 60), 1)
    assert_refused(answer, 503, "disk_full", "RANKMILL_MIN_FREE_DISK_BYTES")
    assert rows() == before


def test_a_disk_with_room_or_that_is_elsewhere_takes_jobs(limited, tmp_path):
    assert as_json(limited(ledger_dir=str(tmp_path), min_free_disk_bytes=1), 1).status_code == 202
    assert as_json(limited(min_free_disk_bytes=1 << 60), 1).status_code == 202


def test_a_ledger_folder_that_is_not_there_is_told_at_the_start(api_settings, tmp_path):
    settings = api_settings.model_copy(update={"ledger_dir": str(tmp_path / "gone")})
    with pytest.raises(Broken, match="RANKMILL_LEDGER_DIR"):
        admission.Admission(settings, None, None)


@pytest.fixture
def own_redis(tmp_path):
    """A server that nobody else fills, and a client of it."""
    server = Valkey(tmp_path, output=tmp_path / "valkey.log")
    server.start()
    with redis.Redis.from_url(server.url) as client:
        yield server.url, client
    server.stop()


def test_nothing_begins_while_redis_is_nearly_full_and_what_has_begun_arrives(limited, own_redis, rows):
    api = limited(redis_url=own_redis[0])

    def body():
        yield b"{}\n"
        yield body_of(10_000)[3:]
        while rows()[0] == 0:
            time.sleep(0.02)
        own_redis[1].config_set("maxmemory", own_redis[1].info("memory")["used_memory"] * 100 // 95)
        time.sleep(admission.REDIS_SECONDS)
        for post in WAYS.values():
            assert_refused(post(api, 1), 503, "redis_full", "RANKMILL_MAX_REDIS_SHARE")
        yield body_of(8_000)[3:]

    answer = api.post("/v1/jobs", content=body(), headers=NDJSON)
    assert answer.status_code == 202, answer.text
    assert answer.json()["counts"]["total"] == 18_000
    assert rows()[0] == 1
    own_redis[1].config_set("maxmemory", 0)
    time.sleep(admission.REDIS_SECONDS)
    assert as_json(api, 1).status_code == 202


def test_jobs_are_taken_while_redis_is_away(limited):
    api = limited(redis_url="redis://127.0.0.1:1/0")
    assert as_json(api, 1).status_code == 202
