"""Requests of ``/generative_scoring`` for a model that expects a first token: it comes once, at the start, or not at all."""

from __future__ import annotations

from uuid import UUID

import pytest
import tokenizers
from asking import LIMITS
from cards import QWEN3_CARD
from msgspec.structs import replace as changed
from tokenizers import models, pre_tokenizers, processors

from api.dialects.generative_scoring import GenerativeScoringRequest, to_ask
from api.readers import Reader
from core.errors import Refused
from store.prompting import Values
from store.tokenizer import JsonTokenizer

BOS, QUERY, ITEM = 0, 1, 2
REQUEST = GenerativeScoringRequest(query="q", items=["i"], label_token_ids=[QUERY, ITEM])


@pytest.fixture(scope="module")
def reader():
    made = tokenizers.Tokenizer(models.BPE({"<s>": BOS, "q": QUERY, "i": ITEM, "a": 3}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return Reader(QWEN3_CARD, JsonTokenizer(made.to_str().encode(), is_fast=False))


@pytest.fixture
def prompt(reader):
    """The ids of the one item's prompt, as a worker makes them."""

    def prompt(**fields):
        submission = to_ask(changed(REQUEST, **fields), reader).submission(UUID(int=1), LIMITS)
        parameters = submission.job.parameters
        assert submission.job.template_version == parameters.template.version
        (item,) = submission.chunks[0].payload.contents
        if isinstance(item, str):
            (ids,) = reader.prompter(parameters.template).prompts([Values(parameters.query, item, "")])
            return ids.tolist()
        item = list(memoryview(item).cast("i"))
        first, second = (item, parameters.query) if parameters.template.puts_item_first else (parameters.query, item)
        return [*first, *second]

    return prompt


@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("add_special_tokens", [False, True])
def test_texts_begin_with_the_first_token_where_it_is_asked_for(item_first, add_special_tokens, prompt):
    found = prompt(item_first=item_first, add_special_tokens=add_special_tokens)
    assert found == [*([BOS] if add_special_tokens else []), *([ITEM, QUERY] if item_first else [QUERY, ITEM])]


@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("add_special_tokens", [False, True])
def test_token_ids_are_joined_as_they_are(item_first, add_special_tokens, prompt):
    found = prompt(query=[QUERY], items=[[ITEM]], item_first=item_first, add_special_tokens=add_special_tokens)
    assert found == ([ITEM, QUERY] if item_first else [QUERY, ITEM])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"items": [[ITEM]]}, [BOS, QUERY, ITEM]),
        ({"items": [[ITEM]], "add_special_tokens": False}, [QUERY, ITEM]),
        ({"items": [[ITEM]], "item_first": True}, [ITEM, QUERY]),  # never in the middle
        ({"query": [QUERY]}, [QUERY, ITEM]),
        ({"query": [BOS, QUERY]}, [BOS, QUERY, ITEM]),
    ],
)
def test_a_text_query_beside_token_ids_begins_with_it_where_it_comes_first(fields, expected, prompt):
    assert prompt(**fields) == expected


def test_a_text_that_spells_the_first_token_is_text(prompt):
    assert prompt(query="<s>q").count(BOS) == 1


def test_the_first_token_counts_towards_what_the_model_takes(prompt):
    assert len(prompt(items=["i" * 510])) == 512
    assert len(prompt(items=["i" * 511], add_special_tokens=False)) == 512
    with pytest.raises(Refused, match="513 tokens"):
        prompt(items=["i" * 511])
