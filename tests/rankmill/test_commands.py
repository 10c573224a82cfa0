from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from typer.testing import CliRunner

from rankmill.cli import app
from rankmill.embedded.ports import LOOPBACK, free_port

UNKNOWN = "00000000-0000-7000-8000-000000000000"


@pytest.fixture
def rankmill(server_url):
    def call(*arguments, stdin=None, server=server_url):
        return CliRunner().invoke(app, [*arguments, "--server", server], input=stdin)

    return call


def fake_score(text):
    return zlib.crc32(text.encode()) / 2**32


def test_a_text_file_comes_back_as_one_result_a_line_in_its_order(rankmill, tmp_path):
    lines = [f"item {number}" for number in range(2_500)]
    source, output = tmp_path / "items.txt", tmp_path / "results.jsonl"
    source.write_text("\n".join(lines))
    done = rankmill("submit", str(source), "--query", "q: ", "--output", str(output))
    assert done.exit_code == 0, done.output
    results = [json.loads(line) for line in output.read_text().splitlines()]
    assert [result["index"] for result in results] == list(range(2_500))
    assert all(
        abs(result["score"] - fake_score("q: " + line)) < 1e-6 for result, line in zip(results, lines, strict=True)
    )
    assert not (tmp_path / "results.jsonl.part").exists()
    assert done.stdout == ""
    assert "2,500 scored" in done.stderr


def test_json_lines_keep_their_ids_queries_and_token_ids(rankmill, tmp_path):
    source = tmp_path / "items.jsonl"
    source.write_text(
        '"plain"\n{"id": "b", "text": "object", "query": "own "}\n\n{"id": "c", "token_ids": [104, 105]}\n'
    )
    done = rankmill("submit", str(source), "--wait")
    assert done.exit_code == 0, done.output
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(result["id"], result["prompt_tokens"]) for result in results] == [(None, 5), ("b", 10), ("c", 2)]
    assert abs(results[1]["score"] - fake_score("own object")) < 1e-6


def test_csv_with_a_header_and_standard_input_are_read_alike(rankmill, tmp_path):
    source = tmp_path / "items.csv"
    source.write_text('id,ignored,text\nx,1,"two, words"\ny,2,three\n')
    from_csv = rankmill("submit", str(source), "--wait", "--item-first", "--query", "?")
    from_stdin = rankmill("submit", "-", "--wait", "--item-first", "--query", "?", stdin="two, words\nthree\n")
    rows, lines = ([json.loads(line) for line in done.stdout.splitlines()] for done in (from_csv, from_stdin))
    assert [row["id"] for row in rows] == ["x", "y"]
    assert [row["score"] for row in rows] == [line["score"] for line in lines]
    assert abs(rows[0]["score"] - fake_score("two, words?")) < 1e-6


def test_labels_are_texts_or_ids_and_their_order_is_that_of_the_probabilities(rankmill):
    by_text = rankmill("submit", "-", "--wait", "--labels", "a,b,c", stdin="one\n")
    by_id = rankmill("submit", "-", "--wait", "--label-ids", "97,98,99", stdin="one\n")
    first, second = (json.loads(done.stdout)["probabilities"] for done in (by_text, by_id))
    assert first == second
    assert len(first) == 3


def test_submit_prints_the_id_alone_and_the_other_commands_take_it(rankmill):
    submitted = rankmill("submit", "-", stdin="one\ntwo\n")
    job_id = submitted.stdout.strip()
    assert rankmill("wait", job_id).exit_code == 0
    assert "completed" in rankmill("status", job_id).stdout
    assert json.loads(rankmill("status", job_id, "--json").stdout)["counts"]["succeeded"] == 2
    assert len(rankmill("results", job_id).stdout.splitlines()) == 2
    assert job_id in rankmill("jobs").stdout
    assert json.loads(rankmill("jobs", "--json", "--limit", "1").stdout)[0]["id"] == job_id
    assert "completed" in rankmill("cancel", job_id).stderr  # ended: it stays as it is


def test_a_dry_run_prints_what_the_server_counts(rankmill):
    counted = json.loads(rankmill("submit", "-", "--dry-run", stdin="one\ntwo\n").stdout)
    assert (counted["num_items"], counted["prompt_tokens"]) == (2, 6)


@pytest.mark.parametrize("command", ["wait", "results"])
@pytest.mark.parametrize(("name", "options"), [("r.csv", []), ("r.jsonl", []), ("r.txt", ["--format", "csv"])])
def test_results_are_written_in_the_format_of_the_ending_or_the_one_that_is_named(
    rankmill, tmp_path, command, name, options
):
    job_id = rankmill("submit", "-", stdin="one\ntwo\n").stdout.strip()
    rankmill("wait", job_id)
    done = rankmill(command, job_id, "-o", str(tmp_path / name), *options)
    assert (done.exit_code, done.stdout) == (0, "")
    first = (tmp_path / name).read_text().splitlines()[0]
    assert first.startswith('{"index":0' if name.endswith("jsonl") else "index,id,score")


def test_parquet_is_written_and_printed_alike(rankmill, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    job_id = rankmill("submit", "-", stdin="one\ntwo\n").stdout.strip()
    rankmill("wait", job_id, "--output", str(tmp_path / "r.parquet"))
    assert pq.read_table(tmp_path / "r.parquet").num_rows == 2
    assert rankmill("results", job_id, "--format", "parquet").stdout_bytes == (tmp_path / "r.parquet").read_bytes()


def test_faults_of_a_file_are_told_as_compilers_do(rankmill, tmp_path):
    source = tmp_path / "items.jsonl"
    source.write_text('"fine"\n{"text": 3}\nnot json\n')
    done = rankmill("submit", str(source))
    assert done.exit_code == 2
    assert done.stderr.splitlines()[0].startswith(f"{source}:3: the line is not valid JSON")
    assert done.stderr.splitlines()[-1].startswith(f"rankmill: {source}:2: text must be text or null")
    assert "nothing of the file was stored [invalid_lines]" in done.stderr


def test_a_job_without_failures_has_nothing_to_retry(rankmill):
    job_id = rankmill("submit", "-", stdin="one\n").stdout.strip()
    rankmill("wait", job_id)
    done = rankmill("retry", job_id)
    assert done.exit_code == 2
    assert "nothing_to_retry" in done.stderr


def test_waiting_for_a_cancelled_job_ends_with_status_4(rankmill):
    many = "".join(f"{number}\n" for number in range(100_000))
    job_id = rankmill("submit", "-", stdin=many).stdout.strip()
    assert "cancelled" in rankmill("cancel", job_id).stderr
    done = rankmill("wait", job_id)
    assert done.exit_code == 4
    assert "cancelled" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["submit", "-"], "", ["no items"]),
        (["submit", "/nowhere/items.txt"], None, ["can't read /nowhere/items.txt", "No such file"]),
        (["submit", "-", "--input-format", "jsonl"], '"a"\nnot json\n', ["standard input:2: ", "not valid JSON"]),
        (["submit", "-", "--input-format", "csv"], "id,body\n1,x\n", ["no column is called text", "id, body"]),
        (["submit", "-", "--input-format", "csv"], "id,text\n1,x,y\n", ["standard input:2: ", "2 columns"]),
        (["submit", "-", "--label-ids", "1,x"], "a\n", ["--label-ids", "'1,x'"]),
        (["submit", "-", "--labels", "a,a"], "a\n", ["duplicate_label"]),
        (["submit", "-", "--model", "no-such"], "a\n", ["no-such"]),
        (["submit", "-", "--output", "/nowhere/out.csv"], "a\n", ["can't write /nowhere/out.csv"]),
        (
            ["submit", "-", "--input-format", "jsonl"],
            '"a"\n{"text": "b", "colour": 1}\n',
            ["standard input:2: ", "colour"],
        ),
        (["status", UNKNOWN], None, ["no such job"]),
        (["results", UNKNOWN], None, ["no such job"]),
        (["wait", UNKNOWN], None, ["no such job"]),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_with_status_2(rankmill, arguments, stdin, words):
    done = rankmill(*arguments, stdin=stdin)
    assert done.exit_code == 2
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("rankmill: ")
    assert "Traceback" not in done.output
    for word in words:
        assert word in lines[-1]


def test_a_server_that_is_away_is_named_with_status_3(rankmill):
    url = f"http://127.0.0.1:{free_port()}"
    done = rankmill("jobs", server=url)
    assert done.exit_code == 3
    assert f"can't reach {url}" in done.stderr
    assert "rankmill up" in done.stderr


def test_something_else_at_the_address_is_no_traceback(rankmill):
    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        thread = Thread(target=other.serve_forever)
        thread.start()
        done = rankmill("jobs", server=f"http://127.0.0.1:{other.server_port}")
        other.shutdown()
        thread.join()
    assert done.exit_code == 1
    assert "did not answer as Rankmill does" in done.stderr


def run_process(command, **environment):
    """As a process of its own: it configures logging, which is not this process's to lose."""
    return subprocess.run(
        [sys.executable, "-m", "rankmill", command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "RANKMILL_DATABASE_URL is not set"),
        ({"RANKMILL_DATABASE_URL": "mysql://u:secret@h/d"}, "RANKMILL_DATABASE_URL does not begin with postgresql://"),
        ({"RANKMILL_DATABASE_URL": "postgresql://h/d"}, "RANKMILL_REDIS_URL is not set"),
        ({"RANKMILL_WORKER_THREADS": "0"}, "RANKMILL_WORKER_THREADS"),
    ],
)
def test_a_process_with_a_missing_or_bad_setting_says_which(environment, words):
    done = run_process("worker", **environment)
    assert done.returncode == 2
    assert words in done.stderr
    assert "secret" not in done.stderr


def test_a_front_end_whose_port_is_taken_ends_with_the_reason(database_url, redis_url):
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        done = run_process(
            "api",
            RANKMILL_API_PORT=str(port),
            RANKMILL_DATABASE_URL=database_url,
            RANKMILL_REDIS_URL=redis_url,
        )
    assert done.returncode == 3
    assert f"('127.0.0.1', {port}): address already in use" in done.stderr


def test_migrating_a_database_that_is_away_says_so_with_status_3():
    done = run_process("migrate", RANKMILL_DATABASE_URL=f"postgresql://someone@127.0.0.1:{free_port()}/nothing")
    assert done.returncode == 3
    assert "Postgres is away" in done.stderr
