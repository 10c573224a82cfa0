"""What commands print as JSON, and the statuses that they end with."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from core.errors import Broken, NotCompleted, NotReady, Refused
from rankmill.cli import app
from rankmill.exits import Exit, reported


@pytest.fixture
def rankmill(server_url):
    def call(*arguments, stdin=None):
        return CliRunner().invoke(app, [*arguments], input=stdin, env={"RANKMILL_URL": server_url})

    return call


@pytest.mark.parametrize("arguments", [[], ["--wait", "--output", "out.csv"]], ids=["sent", "waited for"])
def test_submit_prints_its_job_as_json(rankmill, tmp_path, arguments):
    arguments = [str(tmp_path / word) if word == "out.csv" else word for word in arguments]
    job = json.loads(rankmill("submit", "-", "--json", *arguments, stdin="one\ntwo\n").stdout)
    assert job["counts"]["total"] == 2
    assert job["status"] == "completed" or not arguments
    assert (tmp_path / "out.csv").exists() == bool(arguments)


def test_a_job_and_its_results_are_not_printed_into_each_other(rankmill):
    done = rankmill("submit", "-", "--wait", "--json", stdin="one\n")
    assert done.exit_code == Exit.USAGE
    assert "--output" in done.stderr


def test_wait_cancel_and_models_print_json(rankmill):
    job_id = rankmill("submit", "-", stdin="one\n").stdout.strip()
    assert json.loads(rankmill("wait", job_id, "--json").stdout)["status"] == "completed"
    assert json.loads(rankmill("cancel", job_id, "--json").stdout)["id"] == job_id
    assert {"name", "source", "template"} <= json.loads(rankmill("models", "--json").stdout)[0].keys()


def test_a_retry_prints_its_job_as_json(rankmill):
    many = "".join(f"{number}\n" for number in range(50_000))
    job_id = rankmill("submit", "-", stdin=many).stdout.strip()
    rankmill("cancel", job_id)
    job = json.loads(rankmill("retry", job_id, "--json").stdout)
    assert job["retry_of"] == job_id
    rankmill("cancel", job["id"])


def newest(rankmill):
    return json.loads(rankmill("jobs", "--json", "--limit", "1").stdout)[0]["id"]


def test_strict_says_that_an_item_has_no_score_and_the_results_are_written_all_the_same(rankmill, tmp_path):
    source, output = tmp_path / "items.jsonl", tmp_path / "out.jsonl"
    source.write_text('"fine"\n' + json.dumps("x" * (1 << 20)) + "\n")
    rankmill("rerank", "q: ", str(source), "--truncation", "error")
    job_id = newest(rankmill)
    assert rankmill("wait", job_id, "--output", str(output)).exit_code == Exit.OK
    output.unlink()
    assert rankmill("wait", job_id, "--output", str(output), "--strict").exit_code == Exit.ITEMS_FAILED
    assert len(output.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (Refused("no_items", "there are none"), Exit.USAGE, "there are none [no_items]"),
        (Refused("invalid_key", "no such key", status=401), Exit.USAGE, "RANKMILL_API_KEY"),
        (Refused("forbidden", "not for you", status=403), Exit.USAGE, "--admin"),
        (
            Refused("too_many", "slower", status=429, retry_after_seconds=7),
            Exit.UNREACHABLE,
            "slower [too_many]: try again in 7 s",
        ),
        (NotReady("away"), Exit.UNREACHABLE, "away. is it running?"),
        (NotCompleted("the job failed"), Exit.NOT_COMPLETED, "the job failed"),
        (Broken("odd"), Exit.FAILED, "odd"),
        (KeyboardInterrupt(), Exit.FAILED, "interrupted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_ends_a_command_with_its_status_and_says_what_to_do(capsys, error, status, words):
    with pytest.raises(typer.Exit) as ended, reported(hint="is it running?"):
        raise error
    assert ended.value.exit_code == status
    assert words in capsys.readouterr().err
