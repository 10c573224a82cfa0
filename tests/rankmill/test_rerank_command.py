"""One-off answers on the command line, by a real stack with the fake model, whose scores anyone can check."""

from __future__ import annotations

import json
import re
import zlib

import pytest
import zstandard
from typer.testing import CliRunner

from rankmill.cli import app
from rankmill.exits import Exit
from rankmill.item_texts import MAX_FEW_ITEMS

QUERY = "q: "


@pytest.fixture
def rerank(server_url):
    def call(*arguments, stdin=None):
        return CliRunner().invoke(app, ["rerank", QUERY, *arguments], input=stdin, env={"RANKMILL_URL": server_url})

    return call


def best(texts, number):
    return sorted(texts, key=lambda text: -zlib.crc32((QUERY + text).encode()))[:number]


def shown(done):
    """The texts of the table's rows, in their order."""
    assert done.exit_code == 0, done.output
    rows = [re.fullmatch(r"\s*(\d+) +(\d\.\d{4}) +(.*?) *", line) for line in done.stdout.splitlines()]
    found = [row.groups() for row in rows if row]
    assert [int(rank) for rank, _, _ in found] == list(range(1, len(found) + 1))
    for _, score, text in found:
        assert abs(float(score) - zlib.crc32((QUERY + text).encode()) / 2**32) < 1e-4
    return [text for _, _, text in found]


WORDS = [f"word {number}" for number in range(40)]
MANY = [f"line {number}" for number in range(MAX_FEW_ITEMS + 500)]


def written(folder, texts, ending):
    lines = {
        ".txt": "\n".join(texts),
        ".jsonl": "\n".join(json.dumps({"text": text}) for text in texts),
        ".csv": "text\n" + "\n".join(texts),
    }[ending.removesuffix(".zst")].encode()
    path = folder / f"items{ending}"
    path.write_bytes(zstandard.compress(lines) if ending.endswith(".zst") else lines)
    return str(path)


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv", ".txt.zst"])
def test_the_best_of_a_file_are_shown_with_their_scores(rerank, tmp_path, ending):
    assert shown(rerank(written(tmp_path, WORDS, ending), "--top", "5")) == best(WORDS, 5)


@pytest.mark.parametrize("arguments", [[], ["-"]], ids=["no file", "a dash"])
def test_standard_input_is_ranked_too(rerank, arguments):
    assert shown(rerank(*arguments, stdin="\n".join(WORDS))) == best(WORDS, 10)


@pytest.mark.parametrize("is_stdin", [False, True], ids=["file", "stdin"])
def test_more_than_one_request_takes_are_a_job_that_is_polled_and_their_texts_are_found_again(
    rerank, tmp_path, is_stdin
):
    path = written(tmp_path, MANY, ".txt")
    done = rerank("--top", "7", stdin="\n".join(MANY)) if is_stdin else rerank(path, "--top", "7")
    assert shown(done) == best(MANY, 7)
    assert f"7 of {len(MANY):,} items" in done.stderr


def test_groups_of_a_file_keep_their_places(rerank, tmp_path):
    path = tmp_path / "groups.jsonl"
    path.write_text('"before"\n{"query": "q: ", "items": ["in", {"id": "x", "text": "of"}]}\n"after"\n')
    done = json.loads(rerank(str(path), "--json").stdout)
    assert {item["index"]: item["text"] for item in done["results"]} == dict(enumerate(["before", "in", "of", "after"]))
    assert [item["text"] for item in done["results"]] == best(["before", "in", "of", "after"], 4)


def test_json_has_ranks_scores_and_texts(rerank):
    done = json.loads(rerank("--json", "--top", "3", stdin="\n".join(WORDS)).stdout)
    assert (done["num_items"], done["num_failed"]) == (40, 0)
    assert [(item["rank"], item["text"]) for item in done["results"]] == list(enumerate(best(WORDS, 3), start=1))
    assert done["results"][0]["index"] == WORDS.index(best(WORDS, 1)[0])


def test_labels_say_what_the_score_is_the_probability_of(rerank):
    probabilities = json.loads(rerank("--json", "--labels", "a,b,c", stdin="x\n").stdout)["results"][0]["probabilities"]
    assert len(probabilities) == 3


def test_a_text_cannot_speak_to_the_terminal_and_stays_on_its_line(rerank, tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps("two\nlines \x1b[31mred " + "long " * 200) + "\n")
    done = rerank(str(path))
    assert "\x1b" not in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if "two lines [31mred long" in line]
    assert re.match(r" *1 +\d\.\d{4} ", row), "the other columns stay whole"


def test_an_item_without_a_score_is_shown_last_with_its_reason_and_strict_ends_with_5(rerank, tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_text('"fine"\n' + json.dumps("x" * (1 << 20)) + "\n")  # the fake model's most tokens, and the query
    arguments = [str(path), "--json", "--truncation", "error"]
    done = rerank(*arguments)
    assert done.exit_code == 0
    results = json.loads(done.stdout)["results"]
    assert [(item["rank"], item["error"]) for item in results] == [(1, None), (None, "item_too_long")]
    assert rerank(*arguments, "--strict").exit_code == Exit.ITEMS_FAILED


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["/nowhere"], None, "can't read /nowhere"),
        (["-"], "", "standard input has no items"),
        (["-", "--model", "nope"], "a\n", "there is no model 'nope'"),
        (["-", "--template", "nope"], "a\n", "nope"),
        (["-", "--input-format", "jsonl"], "not json\n", "standard input:1: "),
    ],
    ids=["no file", "no items", "no model", "no template", "no json"],
)
def test_what_cannot_be_ranked_is_said_in_one_line(rerank, arguments, stdin, words):
    done = rerank(*arguments, stdin=stdin)
    assert done.exit_code == Exit.USAGE
    assert words in done.stderr.strip().splitlines()[-1]
