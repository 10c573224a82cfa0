"""Clients and their signing secrets from a shell, over a ledger."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from core.chunks import NewChunk
from core.jobs import JobParameters, NewJob
from core.keys import is_key
from rankmill.cli import app
from store import jobs, webhook_secrets
from store.clients import DEFAULT_CLIENT_ID


@pytest.fixture
def rankmill(database_url):
    """Run a command over the test's database."""

    def run(*arguments, status=0, **environment):
        environment = {"RANKMILL_DATABASE_URL": database_url, "COLUMNS": "200", **environment}
        done = CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment)
        assert done.exit_code == status, done.output
        return done

    return run


def listed(rankmill):
    return {client["name"]: client for client in json.loads(rankmill("clients", "list", "--json").stdout)}


@pytest.fixture
def submit(database):
    """An open job of a client, with a webhook."""

    def submit(client_id):
        chunk = NewChunk(chunk_no=0, first_index=0, num_items=1, num_tokens_estimate=1, num_bytes=1, payload=b"x")
        new = NewJob(UUID(client_id), JobParameters("fake", "q", [0, 1]), "none-1", webhook_url="https://a.example/")
        return jobs.submit(database, new, [chunk], small_lane_cap=0).job.id

    return submit


def test_clients_are_listed_and_changed(rankmill):
    rankmill("keys", "create", "--client", "search", "--weight", 3)
    before = listed(rankmill)
    assert before.keys() == {"default", "search"}
    assert (before["search"]["weight"], before["search"]["num_live_keys"], before["search"]["num_jobs"]) == (3, 1, 0)
    changed = json.loads(rankmill("clients", "set", "search", "--max-open-jobs", 7, "--json").stdout)
    assert (changed["weight"], changed["max_open_jobs"], changed["max_queued_tokens"]) == (3, 7, None)
    rankmill("clients", "set", "search", "--weight", 5, "--max-queued-tokens", 0)
    assert listed(rankmill)["search"] == changed | {"weight": 5, "max_queued_tokens": 0}
    shown = rankmill("clients", "list").stdout
    assert "search" in shown
    assert "no limit" in shown
    assert "[unknown_client]" in rankmill("clients", "set", "serach", "--weight", 5, status=2).output
    assert listed(rankmill).keys() == {"default", "search"}


def test_a_client_has_limits_of_its_own_until_it_has_the_settings_again(rankmill):
    limits = ("--requests-per-minute", 60, "--max-queued-tokens", 9)
    made = json.loads(rankmill("keys", "create", "--client", "search", *limits, "--json").stdout)
    (key,) = json.loads(rankmill("keys", "list", "--json").stdout)
    assert (key["id"], key["requests_per_minute"], key["max_queued_tokens"]) == (made["id"], 60, 9)
    rankmill("clients", "set", "search", "--weight", 2)
    assert listed(rankmill)["search"]["requests_per_minute"] == 60
    shown = rankmill("clients", "set", "search", "--requests-per-minute", 1_200).stdout
    assert "requests/min" in shown
    assert "1,200" in shown
    rankmill("clients", "set", "search", "--requests-per-minute", 0, "--max-queued-tokens", "setting")
    found = listed(rankmill)
    assert (found["search"]["requests_per_minute"], found["search"]["max_queued_tokens"]) == (0, None)
    rankmill("clients", "set", "search", "--requests-per-minute", "setting")
    assert listed(rankmill)["search"]["requests_per_minute"] is None
    assert found["default"] == listed(rankmill)["default"]
    rankmill("keys", "create", "--client", "usual", "--requests-per-minute", "setting")
    assert listed(rankmill)["usual"]["requests_per_minute"] is None


@pytest.mark.parametrize("limit", ["-1", "many", "2147483648", "1.5", ""])
def test_what_is_no_limit_of_requests_is_refused(rankmill, limit):
    assert (
        "--requests-per-minute"
        in rankmill("clients", "set", "default", f"--requests-per-minute={limit}", status=2).output
    )
    assert listed(rankmill)["default"]["requests_per_minute"] is None


def test_a_client_is_deleted_with_what_it_owns_and_nothing_of_others(rankmill, database, submit):
    for name in ("search", "other"):
        rankmill("keys", "create", "--client", name)
        for _ in range(3):
            submit(listed(rankmill)[name]["id"])
    assert "[client_has_jobs]" in rankmill("clients", "delete", "search", status=2).output
    assert listed(rankmill)["search"]["num_open_jobs"] == 3
    assert "3 jobs" in rankmill("clients", "delete", "search", "--with-jobs").stderr
    others = listed(rankmill)
    assert others.keys() == {"default", "other"}
    assert (others["other"]["num_open_jobs"], others["other"]["num_live_keys"]) == (3, 1)
    with database.begin() as connection:
        for table in ("deliveries", "webhook_endpoints"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar() == 0
        assert connection.execute(text("SELECT count(*) FROM chunks")).scalar() == 3


def test_the_client_of_those_without_a_key_is_not_deleted(rankmill):
    assert "[default_client]" in rankmill("clients", "delete", "default", "--with-jobs", status=2).output
    assert "[unknown_client]" in rankmill("clients", "delete", "nobody", status=2).output


def test_a_secret_is_rotated_shown_once_and_the_one_before_it_signs_too(rankmill, database):
    first = rankmill("webhooks", "secret", "rotate")
    second = json.loads(rankmill("webhooks", "secret", "rotate", "--json").stdout)
    assert first.stdout.startswith("whsec_")
    assert first.stdout.strip() not in first.stderr
    assert second["previous_valid_until"] is not None
    with database.begin() as connection:
        assert webhook_secrets.signing(connection, DEFAULT_CLIENT_ID) == [second["secret"], first.stdout.strip()]
    assert "[unknown_client]" in rankmill("webhooks", "secret", "rotate", "--client", "nobody", status=2).output
    environment = {"RANKMILL_WEBHOOK_SECRET": "whsec_AAAA"}
    assert "[secret_in_settings]" in rankmill("webhooks", "secret", "rotate", status=2, **environment).output


def test_keys_are_made_and_rotated_as_json(rankmill):
    made = json.loads(rankmill("keys", "create", "--client", "search", "--json").stdout)
    assert (made["client"], is_key(made["key"])) == ("search", True)
    rotated = json.loads(rankmill("keys", "rotate", made["id"], "--json").stdout)
    assert (rotated["in_place_of"], is_key(rotated["key"])) == (made["id"], True)
    assert "[invalid_client]" in rankmill("keys", "create", "--client", "a\nb", status=2).output
