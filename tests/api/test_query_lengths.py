"""Queries that leave no room for an item are refused at submit, with the numbers. The model takes 512 tokens."""

from __future__ import annotations

from api.requests import Item
from core.builtin_templates import QUERY_LIKELIHOOD, QWEN3_RERANKER


def test_the_longest_query_that_fits_is_taken_and_one_token_more_is_refused_with_the_numbers(asking):
    room = 512 - asking.num_tokens("word", QWEN3_RERANKER)
    fitting = "word" + " word" * room
    assert asking.num_tokens(fitting, QWEN3_RERANKER) == 512
    asking.job(query=fitting)
    found = asking.refusal(query=f"{fitting} word")
    assert (found.code, found.field) == ("query_too_long", "query")
    assert "has 513 tokens" in found.detail
    assert "takes 512" in found.detail


def test_an_items_own_query_is_measured_and_the_jobs_only_if_it_is_used(asking):
    long = " word" * 600
    found = asking.refusal(["a", Item(text="b", query=long)], query="q")
    assert (found.code, found.field, found.item) == ("query_too_long", "items[1].query", 1)
    asking.job([Item(text="b", query="q")], query=long)


def test_token_ids_are_counted_as_they_are(asking):
    asking.job([[1]], template="none", query=[1] * 512, label_token_ids=[1, 2])
    assert asking.fault([[1]], template="none", query=[1] * 513, label_token_ids=[1, 2]) == ("query_too_long", "query")


def test_the_longest_target_has_to_fit_but_for_its_last_token(asking):
    room = 512 - asking.num_tokens("q", QWEN3_RERANKER)
    asking.job(query="q", method="likelihood", labels=[" word" * (room + 1), " no"])
    found = asking.refusal(query="q", method="likelihood", labels=[" word" * (room + 2), " no"])
    assert (found.code, found.field) == ("query_too_long", "query")
    assert "target" in found.detail


def test_a_query_that_is_the_target_is_measured_there(asking):
    room = 512 - asking.num_tokens("", QUERY_LIKELIHOOD)
    likelihood = {"method": "likelihood", "template": "query-likelihood"}
    asking.job(query=("word " * (room + 1)).strip(), **likelihood)
    assert asking.fault(query=("word " * (room + 2)).strip(), **likelihood) == ("query_too_long", "query")


def test_long_items_are_left_to_the_worker(asking):
    asking.job(["word " * 5_000], query="q")
