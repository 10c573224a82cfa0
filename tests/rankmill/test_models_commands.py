"""`rankmill models` and `rankmill doctor`: what can be served, and what is wrong and what to do."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rankmill.cli import app
from store import workers


@pytest.fixture
def run():
    return lambda *arguments, **environment: CliRunner().invoke(app, arguments, env=environment)


@pytest.fixture
def stack(database_url, redis_url):
    return {"RANKMILL_DATABASE_URL": database_url, "RANKMILL_REDIS_URL": redis_url}


def register(database, **changes):
    info = workers.WorkerInfo("w1", "host", 1, "m", 16)
    with database.begin() as connection:
        workers.register(connection, info)
        workers.heartbeat(connection, "w1", state=changes.get("state", "ready"), details={})
        if "reason" in changes:
            workers.refuse(connection, "w1", reason=changes["reason"])


def test_models_lists_the_catalogue_with_an_own_file(run, tmp_path):
    path = tmp_path / "models.toml"
    path.write_text('[mine]\nsource = "/my/folder"\nlabels = [" yes", " no"]\n')
    done = run("models", "--models-file", str(path))
    assert done.exit_code == 0
    assert "qwen3-reranker-0_6b" in done.output
    assert "/my/folder" in done.output


def test_models_says_what_is_wrong_with_an_own_file(run, tmp_path):
    done = run("models", "--models-file", str(tmp_path / "absent.toml"))
    assert done.exit_code == 1
    assert "can't be read" in done.output


def test_doctor_finds_nothing_wrong_with_a_stack_that_would_run_a_job(run, stack, database):
    register(database)
    done = run("doctor", **stack)
    assert done.exit_code == 0, done.output
    assert "WRONG" not in done.output


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"RANKMILL_DATABASE_URL": "postgresql://x@127.0.0.1:1/x"}, "WRONG Postgres"),
        ({"RANKMILL_REDIS_URL": "redis://127.0.0.1:1/0"}, "WRONG Redis"),
        ({"RANKMILL_DATABASE_URL": ""}, "set RANKMILL_DATABASE_URL"),
    ],
)
def test_doctor_names_the_part_that_is_away_and_what_to_do(run, stack, database, changes, said):
    register(database)
    done = run("doctor", **(stack | changes))
    assert done.exit_code == 1
    assert said in done.output


def test_doctor_says_that_no_worker_is_ready(run, stack):
    done = run("doctor", **stack)
    assert done.exit_code == 1
    assert "start one: `rankmill worker`" in done.output


def test_doctor_says_why_a_worker_does_not_serve_its_model(run, stack, database):
    register(database, reason="known answer failed: for 'q' ...")
    done = run("doctor", **stack)
    assert done.exit_code == 1
    assert "does not serve m: known answer failed" in done.output


def test_doctor_asks_for_a_migration_where_the_schema_is_not_of_this_version(run, stack, empty_database_url):
    done = run("doctor", **(stack | {"RANKMILL_DATABASE_URL": empty_database_url}))
    assert done.exit_code == 1
    assert "run `rankmill migrate`" in done.output
