"""The demo as a user runs it, once; then its ranking and its numbers are looked at."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from core.results import ItemResult
from rankmill import demo
from rankmill.replies import Job

pytestmark = pytest.mark.timeout(900)  # a minute on two idle cores, many where others are at work

EXPECTED = {  # topic: the modules, and how many of them must be among the first five
    "compression": ({"bz2", "zlib", "lzma", "gzip"}, 4),
    "database": ({"sqlite3", "dbm", "shelve"}, 3),
    "email": ({"email", "smtplib", "mailbox"}, 3),
}
NUM_COMPARED = 8


class Output(msgspec.Struct):
    job: Job
    request: dict[str, object]
    results: list[ItemResult]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    file = tmp_path_factory.mktemp("demo") / "demo.json"
    done = subprocess.run(
        [sys.executable, "-m", "rankmill", "demo", "--output", str(file)],
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, msgspec.json.decode(file.read_bytes(), type=Output)


def test_the_demo_scores_at_least_sixty_modules_and_prints_ranking_usage_and_seconds(ran):
    printed, output = ran
    assert output.job.status == "completed"
    assert output.job.counts.succeeded == len(output.results) >= 60
    assert output.job.usage.prompt_tokens == sum(result.prompt_tokens for result in output.results)
    for topic in demo.TOPICS:
        assert topic in printed
    assert f"{output.job.usage.prompt_tokens:,} prompt tokens" in printed
    assert "Scored in" in printed
    assert "Calibrated" in printed


@pytest.mark.parametrize("topic", EXPECTED)
def test_the_demo_finds_the_modules_of_a_topic(ran, topic):
    modules, at_least = EXPECTED[topic]
    first_five = {name for name, _ in demo.best(ran[1].results, demo.TOPICS.index(topic))}
    assert len(first_five & modules) >= at_least, first_five


def test_the_demos_probabilities_are_those_of_a_plain_forward_pass_of_one_item(ran):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = demo.model_file()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    labels = [tokenizer.encode(label, add_special_tokens=False) for label in ran[1].request["labels"]]
    assert all(len(label) == 1 for label in labels)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two that wait for each other spin, which is slower where other tests run
    step = len(ran[1].results) // NUM_COMPARED
    for result, item in list(zip(ran[1].results, ran[1].request["items"], strict=True))[::step]:
        tokens = tokenizer(item["text"] + ran[1].request["query"], return_tensors="pt").input_ids
        with torch.no_grad():
            logits = model(tokens).logits[0, -1, [label[0] for label in labels]]
        expected = logits.softmax(-1).tolist()
        assert result.prompt_tokens == tokens.shape[1]
        assert max(abs(ours - plain) for ours, plain in zip(result.probabilities, expected, strict=True)) < 1e-4
    torch.set_num_threads(num_threads)


def test_a_query_ranks_the_modules_that_answer_it_first(tmp_path):
    file = tmp_path / "demo.json"
    done = subprocess.run(
        [sys.executable, "-m", "rankmill", "demo", "--query", "How do I send an email?", "--output", str(file)],
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    output = msgspec.json.decode(file.read_bytes(), type=Output)
    assert output.job.counts.succeeded == len(output.results) >= 60
    ranked = sorted(output.results, key=lambda result: -result.score)
    assert {"email", "smtplib"} & {result.id for result in ranked[:5]}, [result.id for result in ranked[:10]]
    assert all(result.probabilities is None and result.label_mass is None for result in ranked)
