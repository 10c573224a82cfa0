from __future__ import annotations

import csv
import json
import os
import zlib
from itertools import count

import psutil
import pytest

from rankmill import Client, ItemFile, Refused

HELD_MEGABYTES = 25  # what 200,000 items would exceed many times over


@pytest.fixture
def client(server_url):
    with Client(server_url) as client:
        yield client


@pytest.fixture(scope="module")
def scored(server_url):
    """A job of 20,000 items with ids that CSV has to quote."""
    with Client(server_url) as client:
        job = client.submit(items=({"id": f'{n}, "x"\r\n', "text": f"item {n}"} for n in range(20_000)), query="q ")
        return client.wait(job.id)


def fake_score(text):
    return zlib.crc32(text.encode()) / 2**32


def test_a_generator_of_200_000_items_goes_up_and_its_results_come_down_in_constant_memory(client):
    process, peaks = psutil.Process(), []

    def watch(number):
        if number % 5_000 == 0:
            peaks.append(process.memory_info().rss)

    def items():
        for number in range(200_000):
            watch(number)
            yield {"id": f"id-{number}", "text": f"{number} " + os.urandom(100).hex()}

    list(client.results(client.wait(client.submit(items=["warm", "up"]).id).id))
    before = process.memory_info().rss
    job = client.submit(items=items(), query="q ")
    assert job.counts.total == 200_000
    assert client.wait(job.id).counts.succeeded == 200_000
    indexes = count()
    for result in client.results(job.id):
        watch(result.index)
        assert (result.index, result.id) == (index := next(indexes), f"id-{index}")
    assert next(indexes) == 200_000
    assert (max(peaks) - before) / 1e6 < HELD_MEGABYTES


@pytest.mark.parametrize("compression", ["zstd", "gzip", "none"])
def test_items_arrive_whole_in_either_compression(client, compression):
    texts = [f"größer {number}" for number in range(3_000)]
    job = client.wait(client.submit(items=iter(texts), query="q ", compression=compression).id)
    scores = [result.score for result in client.results(job.id)]
    assert all(abs(score - fake_score(f"q {text}")) < 1e-6 for score, text in zip(scores, texts, strict=True))


def test_a_small_list_and_a_long_one_are_sent_in_their_own_ways_and_scored_alike(client):
    short, long = client.submit(items=["a", "b"]), client.submit({"items": ["a", "b"] * 600})
    assert (short.counts.total, long.counts.total) == (2, 1_200)
    results = [[result.score for result in client.results(client.wait(job.id).id)] for job in (short, long)]
    assert results[1] == results[0] * 600


def test_every_format_holds_what_the_lines_hold(client, scored, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    paths = [client.download(scored.id, tmp_path / name) for name in ("r.ndjson", "r.csv", "r.parquet", "r.arrow")]
    lines = [json.loads(line) for line in paths[0].read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(20_000))
    with paths[1].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["index"]), row["id"], float(row["score"])) for row in rows] == [
        (line["index"], line["id"], line["score"]) for line in lines
    ]
    assert parquet.read_table(paths[2]).to_pylist() == lines
    assert pa.ipc.open_stream(paths[3]).read_all().to_pylist() == lines
    assert not list(tmp_path.glob("*.part"))


def test_results_begin_behind_an_index_and_are_those_that_are_wanted(client, scored):
    assert [result.index for result in client.results(scored.id, after_index=19_990)] == list(range(19_991, 20_000))
    assert list(client.results(scored.id, status="failed")) == []
    first = next(client.results(scored.id, order="score", include=["label_logprobs"]))
    assert first.score == max(result.score for result in client.results(scored.id))
    assert len(first.label_logprobs) == 2


def test_reranking_gives_the_best_first_also_of_more_than_a_page(client):
    texts = [f"text {number}" for number in range(1_500)]
    ranked = client.rerank("q ", texts)
    assert [result.index for result in ranked] == sorted(range(1_500), key=lambda n: -fake_score(f"q {texts[n]}"))
    slow = client.rerank("q ", texts[:3], wait_seconds=0)
    assert {result.index for result in slow} == {0, 1, 2}


def test_faults_of_lines_are_told_by_the_index_of_their_items(client):
    with pytest.raises(Refused) as told:
        client.submit(items=({"text": "x"} if number % 7 else {"colour": 1} for number in range(2_000)))
    assert told.value.item == 0
    assert [fault["item"] for fault in told.value.errors[:3]] == [0, 7, 14]
    assert "item 0 is not valid" in str(told.value)


def test_faults_of_a_file_are_told_by_its_own_lines(client, tmp_path):
    file = tmp_path / "items.csv"
    file.write_text('id,text\na,"two\nlines"\n\na,again\n')
    with pytest.raises(Refused, match=r"line 5 .* line 3 too") as told:
        client.submit(items=ItemFile(file))
    assert told.value.line == 5


@pytest.mark.parametrize(
    ("fields", "words"), [({}, "item 0 is not valid"), ({"colour": "red"}, "no field 'colour'")], ids=["items", "job"]
)
def test_a_refusal_ends_an_endless_upload(client, fields, words):
    endless = (os.urandom(200).hex() if number % 3 else {"colour": 1} for number in count())
    with pytest.raises(Refused, match=words):
        client.submit(items=endless, **fields)


def test_an_error_of_the_items_is_the_callers_own_and_says_what_became_of_the_job(client):
    def items():
        yield from map(str, range(50_000))
        raise LookupError("no more")

    with pytest.raises(LookupError) as raised:
        client.submit(items=items())
    assert raised.value.__notes__ == ["the upload was broken off after 50,000 items; nothing of it is scored"]
    assert all(job.counts.total != 50_000 for job in client.jobs(limit=5))


@pytest.mark.parametrize("items", ["text", b"bytes", {"a": 1}, 7])
def test_what_is_no_iterable_of_items_is_refused_here(client, items):
    with pytest.raises(Refused, match="items are an iterable"):
        client.submit(items=items)


@pytest.mark.parametrize(
    ("item", "words"),
    [(b"x", "no bytes"), ("\ud800", "UTF-8"), (object(), "JSON")],
    ids=["bytes", "surrogate", "object"],
)
def test_an_item_that_no_json_can_carry_is_named(client, item, words):
    with pytest.raises(Refused, match=words) as told:
        client.submit(items=iter(["fine", item]))
    assert told.value.item == 1


def test_more_jobs_than_a_page_holds_are_listed(client):
    for _ in range(105):
        client.submit(items=["a"])
    found = client.jobs(limit=103)
    assert len({job.id for job in found}) == 103


def test_a_dry_run_counts_and_stores_nothing(client):
    before = client.jobs(limit=1)
    counted = client.dry_run(items=(f"item {number}" for number in range(2_500)), query="q ")
    assert (counted.num_items, counted.refusal) == (2_500, None)
    assert counted.prompt_tokens == sum(len(f"q item {number}") for number in range(2_500))
    assert client.dry_run({"items": ["a"]}).num_items == 1
    assert client.jobs(limit=1) == before


def test_what_was_not_scored_is_retried_as_a_new_job(client):
    lines = (f"item {number}" if number % 2 else {"colour": 1} for number in range(2_000))
    job = client.wait(client.submit(items=lines, on_invalid="skip").id)
    assert (job.counts.succeeded, job.counts.failed) == (1_000, 1_000)
    with pytest.raises(Refused, match=r"every item .* has its score"):
        client.retry(job.id)
    large = client.submit(items=(os.urandom(500).hex() for _ in range(50_000)))
    assert client.cancel(large.id).counts.cancelled
    again = client.retry(large.id)
    assert (again.retry_of, client.retry(large.id).id) == (large.id, again.id)
    assert client.wait(again.id).status == "completed"
