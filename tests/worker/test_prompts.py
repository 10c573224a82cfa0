"""Items as token ids: joined, tokenised together, cut without touching the query."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from core.chunks import NewItem, cut
from core.jobs import JobParameters
from core.results import ItemError
from core.templates import NONE, NONE_ITEM_FIRST
from store.tokenizer import ByteTokenizer, JsonTokenizer
from worker.prompts import prepare

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def ids(*values):
    return np.array(values, "<i4").tobytes()


def prepare_items(items, *, max_tokens=1_000, tokenizer=None, item_first=False, **parameters):
    parameters["template"] = NONE_ITEM_FIRST if item_first else NONE
    parameters = JobParameters(**({"model": "fake", "query": "Q", "label_token_ids": [0, 1]} | parameters))
    (chunk,) = cut([item if isinstance(item, NewItem) else NewItem(item) for item in items])
    return prepare(parameters, chunk.payload, tokenizer or ByteTokenizer(), max_tokens=max_tokens)


def merging_tokenizer():
    """A BPE of a, b and x that merges a and b, and puts a 0 before every text."""
    vocabulary = {"<s>": 0, "a": 1, "b": 2, "x": 3, "ab": 4}
    tokenizer = tokenizers.Tokenizer(BPE(vocabulary, [("a", "b")]))
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return JsonTokenizer(tokenizer.to_str().encode(), is_fast=False)


def prompts_of(prepared):
    """The token ids of each prompt, as lists."""
    ends = np.cumsum(prepared.prompts.lengths_B)
    return [part.tolist() for part in np.split(prepared.prompts.token_ids_T, ends[:-1])] if len(ends) else []


def texts_of(prepared):
    return [bytes(prompt).decode() for prompt in prompts_of(prepared)]


def test_query_and_item_are_joined_in_the_order_asked_for():
    assert texts_of(prepare_items(["a", "bc"])) == ["Qa", "Qbc"]
    assert texts_of(prepare_items(["a", "bc"], item_first=True)) == ["aQ", "bcQ"]


def test_an_items_own_query_replaces_the_jobs():
    items = [NewItem("a"), NewItem("b", query="R", query_no=1), NewItem("c", query="S", query_no=2)]
    assert texts_of(prepare_items(items)) == ["Qa", "Rb", "Sc"]


def test_token_ids_are_taken_as_they_are_beside_texts():
    items = [NewItem(ids(7, 8), query=ids(1), query_no=1), NewItem("a"), NewItem(ids(9), query=ids(), query_no=2)]
    assert prompts_of(prepare_items(items)) == [[1, 7, 8], [ord("Q"), ord("a")], [9]]


def test_a_query_of_token_ids_goes_with_items_of_token_ids():
    assert prompts_of(prepare_items([ids(5), ids(6, 7)], query=[1, 2])) == [[1, 2, 5], [1, 2, 6, 7]]


def test_labels_of_an_item_replace_the_jobs_and_are_padded():
    items = [NewItem("a"), NewItem("b", label_token_ids=[5, 6, 7]), NewItem("c", label_token_ids=[9, 8])]
    prepared = prepare_items(items)
    assert prepared.prompts.label_ids_BL.tolist() == [[0, 1, -1], [5, 6, 7], [9, 8, -1]]
    assert prepared.num_values_N.tolist() == [2, 3, 2]


def test_an_empty_prompt_and_one_that_is_too_long_are_left_out():
    prepared = prepare_items(["", "abc", "ab", "", "b"], query="", max_tokens=2, truncation="error")
    assert texts_of(prepared) == ["ab", "b"]
    assert prepared.item_B.tolist() == [2, 4]
    empty, long = ItemError.EMPTY_PROMPT, ItemError.TOO_LONG
    assert prepared.errors_N == [empty, long, None, empty, None]


@pytest.mark.parametrize(("item_first", "expected"), [(False, "Qabc"), (True, "abcQ")])
def test_a_long_item_is_cut_at_its_end_and_says_by_how_much(item_first, expected):
    prepared = prepare_items(["abcdefg"], max_tokens=4, item_first=item_first)
    assert texts_of(prepared) == [expected]
    assert prepared.tokens_dropped_N.tolist() == [4]


def test_a_cut_never_splits_a_character():
    assert texts_of(prepare_items(["aéé"], max_tokens=5)) == ["Qaé"]
    assert texts_of(prepare_items(["aéé"], max_tokens=3)) == ["Qa"]
    assert texts_of(prepare_items(["a€"], max_tokens=4, item_first=True)) == ["aQ"]


def test_query_and_item_are_tokenised_as_one_text_and_a_cut_item_once_more():
    tokenizer = merging_tokenizer()
    assert prompts_of(prepare_items(["bb"], query="xa", tokenizer=tokenizer)) == [[0, 3, 4, 2]]
    cut_items = prepare_items(["bbbab"], query="xa", tokenizer=tokenizer, max_tokens=5)
    assert prompts_of(cut_items) == [[0, 3, 4, 2, 2]]
    assert cut_items.tokens_dropped_N.tolist() == [1]
    cut_first = prepare_items(["xxa"], query="bx", tokenizer=tokenizer, max_tokens=4, item_first=True)
    assert prompts_of(cut_first) == [[0, 3, 2, 3]]
    assert cut_first.tokens_dropped_N.tolist() == [1]


def test_long_token_ids_are_cut_at_their_end():
    prepared = prepare_items([ids(5, 6, 7)], query=[1], max_tokens=3)
    assert prompts_of(prepared) == [[1, 5, 6]]
    assert prompts_of(prepare_items([ids(5, 6, 7)], query=[1], max_tokens=3, item_first=True)) == [[5, 6, 1]]
    assert prepared.tokens_dropped_N.tolist() == [1]


def test_an_item_of_which_nothing_would_be_left_is_too_long():
    for item, query in (("a", "QQQ"), (ids(5), [1, 2, 3]), ("é", "QQ")):
        prepared = prepare_items([item], query=query, max_tokens=3)
        assert prepared.errors_N == [ItemError.TOO_LONG]
        assert len(prepared.item_B) == 0


@given(
    query=TEXTS, items=st.lists(TEXTS, min_size=1, max_size=5), max_tokens=st.integers(1, 40), item_first=st.booleans()
)
def test_every_prompt_fits_and_holds_its_whole_query(query, items, max_tokens, item_first):
    prepared = prepare_items(items, query=query, max_tokens=max_tokens, item_first=item_first)
    for position, prompt in zip(prepared.item_B.tolist(), texts_of(prepared), strict=True):
        item, dropped = items[position], int(prepared.tokens_dropped_N[position])
        assert 0 < len(prompt.encode()) <= max_tokens
        kept = prompt.removesuffix(query) if item_first else prompt.removeprefix(query)
        assert prompt == (kept + query if item_first else query + kept)
        assert item.startswith(kept)
        assert len(kept.encode()) + dropped == len(item.encode())
    assert sum(error is None for error in prepared.errors_N) == len(prepared.item_B)
