"""`rankmill doctor`: each thing that can be wrong with an installation is named, with what to do about it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import redis
from sqlalchemy import text
from typer.testing import CliRunner

from core.chunks import NewItem, cut
from core.jobs import JobParameters, NewJob
from rankmill.cli import app
from store import jobs, workers
from store.clients import DEFAULT_CLIENT_ID
from store.database import Database
from store.leader import try_to_lead

WORKER = workers.WorkerInfo("w1", "host", 1, "m", 16)
EMPTY = {"RANKMILL_DATABASE_URL": "", "RANKMILL_REDIS_URL": ""}


@pytest.fixture
def stack(database_url, redis_url, tmp_path):
    return {
        "RANKMILL_DATABASE_URL": database_url,
        "RANKMILL_REDIS_URL": redis_url,
        "RANKMILL_DATA_DIR": str(tmp_path),
        "RANKMILL_MIN_FREE_DISK_BYTES": "0",
    }


@pytest.fixture
def leading(database_url):
    leader = Database(database_url, pool_size=1)
    with try_to_lead(leader) as found:
        assert found is not None
        yield
    leader.dispose()


@pytest.fixture
def doctor(stack, database):
    """Run it; its exit status, and the findings that are wrong as lines of their name and their detail and remedy."""

    def doctor(*arguments, **changes):
        done = CliRunner().invoke(app, ["doctor", "--json", *arguments], env=stack | changes)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        findings = json.loads(done.stdout)["findings"]
        assert all(finding["remedy"] for finding in findings if not finding["is_ok"]), "what to do is always said"
        wrong = {
            finding["what"]: f"{finding['detail']} -> {finding['remedy']}"
            for finding in findings
            if not finding["is_ok"]
        }
        assert done.exit_code == (1 if wrong else 0)
        return wrong

    return doctor


def register(database, info=WORKER, *, state="ready", reason=None, **details):
    with database.begin() as connection:
        workers.register(connection, info)
        workers.heartbeat(connection, info.owner, state=state, details=details)
        if reason is not None:
            workers.refuse(connection, info.owner, reason=reason)


def execute(database, statement, **values):
    with database.begin() as connection:
        connection.execute(text(statement), values)


def post(database, model="m", **fields):
    new = NewJob(DEFAULT_CLIENT_ID, JobParameters(model=model, query="q", label_token_ids=[0, 1]), "none/1", **fields)
    with database.begin() as connection:
        return jobs.create(connection, new, cut([NewItem("a")]), small_lane_cap=1).job.id


@pytest.fixture
def well(database, leading):
    """A stack that would run a job."""
    register(database)


def test_nothing_is_wrong_with_a_stack_that_would_run_a_job(doctor, well):
    assert doctor() == {}


def test_what_is_right_is_listed_too_for_people(stack, well):
    done = CliRunner().invoke(app, ["doctor"], env=stack)
    assert done.exit_code == 0, done.output
    for what in (
        "Postgres",
        "schema",
        "scheduler",
        "worker w1",
        "queue",
        "webhooks",
        "partitions",
        "keys",
        "clocks",
        "Redis",
        "disk",
    ):
        assert f"ok    {what}: " in done.output


@pytest.mark.parametrize(
    ("changes", "what", "said"),
    [
        ({"RANKMILL_DATABASE_URL": "postgresql://x@127.0.0.1:1/x"}, "Postgres", "is it running"),
        ({"RANKMILL_DATABASE_URL": ""}, "Postgres", "set RANKMILL_DATABASE_URL"),
        ({"RANKMILL_REDIS_URL": "redis://127.0.0.1:1/0"}, "Redis", "is it running"),
        ({"RANKMILL_REDIS_URL": ""}, "Redis", "set RANKMILL_REDIS_URL"),
        ({"RANKMILL_API_HOST": "0.0.0.0"}, "keys", "rankmill keys create --admin"),
        ({"RANKMILL_MIN_FREE_DISK_BYTES": str(1 << 60)}, "disk", "make room"),
    ],
)
def test_a_part_that_is_away_or_set_wrongly_is_named(doctor, well, changes, what, said):
    wrong = doctor(**changes)
    assert list(wrong) == [what]
    assert said in wrong[what]


def test_a_schema_that_is_missing_or_behind_wants_a_migration_and_one_ahead_a_newer_program(
    doctor, well, database, empty_database_url
):
    assert "rankmill migrate" in doctor(RANKMILL_DATABASE_URL=empty_database_url)["schema"]
    execute(database, "UPDATE alembic_version SET version_num = '0001'")
    assert "behind" in doctor()["schema"]
    execute(database, "UPDATE alembic_version SET version_num = '9999'")
    assert "upgrade it" in doctor()["schema"]


def test_that_no_scheduler_leads_is_seen_by_the_lock_that_nobody_holds(doctor, database):
    register(database)
    assert list(wrong := doctor()) == ["scheduler"]
    assert "none leads" in wrong["scheduler"]


def test_a_worker_that_refused_its_model_says_why(doctor, leading, database):
    register(database, reason="known answer failed: for 'q' ...")
    wrong = doctor()
    assert "does not serve m: known answer failed" in wrong["worker w1"]
    assert "start one" in wrong["workers"]


def test_a_dead_workers_row_is_shown(doctor, well, database):
    register(database, replace(WORKER, owner="w2"))
    execute(database, "UPDATE workers SET heartbeat_at = now() - interval '1 minute' WHERE owner = 'w2'")
    assert list(wrong := doctor()) == ["worker w2"]
    assert "silent since" in wrong["worker w2"]


def test_jobs_that_no_worker_serves_and_jobs_that_wait_too_long_are_told_apart(doctor, well, database):
    job_id = post(database)
    assert doctor() == {}
    wrong = doctor("--max-wait-seconds", "0")
    assert str(job_id) in wrong["oldest chunk"]
    post(database, model="another")
    assert "1 open jobs wait for another" in doctor()["queue"]


def test_webhooks_that_nobody_sends_and_endpoints_that_were_disabled_are_counted(doctor, well, database):
    job_id = post(database, webhook_url="https://example.com/hook")
    with database.begin() as connection:
        jobs.cancel(connection, job_id, client_id=None)
    assert doctor() == {}
    execute(database, "UPDATE deliveries SET next_attempt_at = now() - interval '1 hour'")
    assert "rankmill deliverer" in doctor()["webhooks"]
    execute(database, "UPDATE deliveries SET state = 'given_up', finished_at = now()")
    execute(database, "UPDATE webhook_endpoints SET disabled_at = now(), disabled_reason = 'failing'")
    assert "1 were disabled" in doctor()["webhook endpoints"]


def test_missing_partitions_are_seen_days_before_they_are_missed(doctor, well, database):
    execute(database, "DO $$ DECLARE t text; BEGIN FOR t IN SELECT child.relname FROM pg_inherits"
        " JOIN pg_class child ON child.oid = inhrelid JOIN pg_class p ON p.oid = inhparent"
        " WHERE p.relname = 'results' AND p.relkind = 'p' AND right(child.relname, 8) > to_char(now() + interval '1 day', 'YYYYMMDD')"
        " LOOP EXECUTE 'DROP TABLE ' || t; END LOOP; END $$")  # fmt: skip
    assert "made for 1 days ahead -> run `rankmill migrate`" in doctor()["partitions"]


def test_a_redis_that_evicts_or_is_full_is_no_place_for_hints(doctor, well, redis_url):
    with redis.Redis.from_url(redis_url) as client:
        try:
            client.config_set("maxmemory-policy", "allkeys-lru")
            assert "noeviction" in doctor()["Redis' policy"]
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", client.info("memory")["used_memory"] + 1_000)
            assert "RANKMILL_MAX_REDIS_SHARE" in doctor()["Redis' memory"]
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")


def test_a_workers_clock_that_is_off_is_told_from_postgres(doctor, leading, database):
    with database.begin() as connection:
        now = connection.execute(text("SELECT extract(epoch FROM now())::float8")).scalar_one()
    register(database, clock=now + 120)
    assert "worker w1 is 1" in (wrong := doctor())["clock"]
    assert "ahead of Postgres'" in wrong["clock"]
