"""What a client is billed: the tokens of its own prompts as a tokenizer counts them, each once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import text

from core.chunks import NewItem
from core.results import ItemError
from core.templates import Template
from worker.score_chunk import run_chunk

ASK = Template("ask", "Text: {item}\nIs it about {query}?", target=" {query}")


def num_bytes(*texts):
    return sum(len(each.encode()) for each in texts)


@pytest.fixture
def run(submit, make_ledger, make_scorer, read_job, read_results):
    """Score a job's chunks to its end; its usage and its items."""

    def run(items, *, max_tokens=1_000, **parameters):
        keys = submit(items, chunk_items=7, **parameters)
        for key in keys:
            run_chunk(key, make_ledger(), make_scorer(max_tokens=max_tokens))
        return read_job(keys[0].job_id).usage, read_results(keys[0].job_id)

    return run


def test_usage_is_the_sum_of_the_items_and_each_item_its_tokenizers_count(run):
    items = ["short", "naïve 風 🛩", "a\n\nb", "x" * 300] * 5
    usage, found = run(items, query="Q: ")
    assert [result.prompt_tokens for result in found] == [num_bytes("Q: ", item) for item in items]
    assert usage.prompt_tokens == usage.total_tokens == sum(num_bytes("Q: ", item) for item in items)


def test_a_template_counts_as_it_is_sent_and_each_target_once(run):
    items = ["one", "two 風", "three"]
    usage, _ = run(items, query="wings", template=ASK, method="likelihood", label_token_ids=[])
    prompts = sum(num_bytes(f"Text: {item}\nIs it about wings?", " wings") for item in items)
    assert usage.prompt_tokens == prompts
    usage, _ = run(items, query="wings", template=ASK, method="likelihood", labels=["yes", "not"], label_token_ids=[])
    assert usage.prompt_tokens == prompts + len(items) * (num_bytes("yes", "not") - num_bytes(" wings"))


def test_own_queries_count_and_what_a_score_is_calibrated_against_does_not(run):
    items = [NewItem("a", query="one? ", query_no=1), NewItem("b"), NewItem("c", query="another? ", query_no=2)]
    counts = [num_bytes("one? a"), num_bytes("Q: b"), num_bytes("another? c")]
    for calibrate in (False, True):
        usage, found = run(items, query="Q: ", calibrate=calibrate)
        assert [result.prompt_tokens for result in found] == counts
        assert usage.prompt_tokens == sum(counts)


def test_a_cut_item_is_billed_as_it_was_read_and_a_failed_one_not_at_all(run, batcher):
    batcher.errors = {1: ItemError.NON_FINITE_SCORE}
    usage, found = run(["x" * 100, "bad", "y", ""], query="", max_tokens=40)
    assert [result.prompt_tokens for result in found] == [40, 0, 1, 0]
    assert [result.tokens_dropped for result in found] == [60, 0, 0, 0]
    assert usage.prompt_tokens == 41


def test_cached_tokens_stand_apart_and_lower_no_bill(run, batcher):
    inner = batcher.score

    def with_cached(prompts, *, small):
        outcomes = inner(prompts, small=small)
        return replace(outcomes, cached_tokens_B=(prompts.lengths_B // 2).astype(np.int32))

    batcher.score = with_cached
    usage, found = run(["aaaa", "bbbbbb"], query="Q:")
    assert (usage.prompt_tokens, usage.cached_tokens) == (6 + 8, 3 + 4)
    assert [(result.prompt_tokens, result.cached_tokens) for result in found] == [(6, 3), (8, 4)]


@pytest.mark.parametrize("num_lost", [1, 2])
def test_a_chunk_that_was_scored_again_and_again_is_billed_once(
    submit, make_ledger, make_scorer, batcher, database, read_job, read_results, num_lost
):
    (key,) = submit(["one", "two"], query="")
    owners = iter("bcd")
    left = [num_lost]

    def lose_the_lease():
        if left[0]:
            left[0] -= 1
            with database.begin() as connection:
                connection.execute(text("UPDATE chunks SET lease_until = now() - interval '1 s'"))
            run_chunk(key, make_ledger(next(owners)), make_scorer())

    batcher.before_scoring = lose_the_lease
    run_chunk(key, make_ledger("a"), make_scorer())
    run_chunk(key, make_ledger("e"), make_scorer())
    assert len(batcher.asked) == num_lost + 1
    assert read_job(key.job_id).usage.prompt_tokens == 6
    assert [result.prompt_tokens for result in read_results(key.job_id)] == [3, 3]
