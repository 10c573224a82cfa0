"""What is never lost of a prompt, however long its item is, and what never comes into it twice."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from scoring_path import Path
from tokenizers.processors import TemplateProcessing

from core.builtin_templates import QUERY_LIKELIHOOD
from core.templates import NONE, Template
from store.tokenizer import JsonTokenizer
from worker.outcomes import Outcomes

ASK = Template("ask", "<|start|>Question: {query}\nText: {item}<|end|>\nAnswer:")
CHAT = Template("chat", "<s><|start|>{query}\n{item}<|end|>", is_chat=True)
SPECIALS = ["<s>", "<|start|>", "<|end|>"]
LABELS = {"label_token_ids": [10, 11]}


def tokenizer_of(*, bos):
    """Bytes, and three special tokens; with ``bos`` it puts one of them before every text."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({word: n for n, word in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(SPECIALS)
    if bos:
        ids = [("<s>", tokenizer.token_to_id("<s>"))]
        tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=ids)
    return JsonTokenizer(tokenizer.to_str().encode(), is_fast=False)


class Half:
    """A batcher that finds every label as likely as not."""

    def score(self, prompts, **_):
        logprobs = np.where(prompts.label_ids_BL >= 0, np.float32(np.log(0.5)), np.nan).astype(np.float32)
        return Outcomes(logprobs, np.zeros(len(logprobs), np.int32), [None] * len(logprobs))


def path_of(*, bos=True, max_tokens=100):
    return Path(Half(), tokenizer_of(bos=bos), max_tokens)


def sequences(path, items, **parameters):
    _, prepared, _ = path.chunk(items, **parameters)
    return [
        part.tolist() for part in np.split(prepared.prompts.token_ids_T, np.cumsum(prepared.prompts.lengths_B)[:-1])
    ]


@settings(deadline=None)
@given(
    query=st.text(st.characters(codec="utf-8"), max_size=12),
    piece=st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
    max_tokens=st.integers(100, 130),
)
def test_an_item_ten_times_too_long_keeps_the_templates_last_ids_and_the_whole_query(query, piece, max_tokens):
    path = path_of(max_tokens=max_tokens)
    item = piece * (10 * max_tokens // len(piece.encode()) + 1)
    parameters = {"query": query, "template": ASK, **LABELS}
    (ids,) = sequences(path, [item], **parameters)
    head = [
        *path.tokenizer.bos,
        *path.tokenizer.encode_control("<|start|>"),
        *path.tokenizer.encode_texts([f"Question: {query}\nText: "])[0].tolist(),
    ]
    tail = path.tokenizer.encode_control("<|end|>\nAnswer:")
    assert ids[: len(head)] == head
    assert ids[-len(tail) :] == tail
    assert max_tokens - 3 <= len(ids) <= max_tokens, "counted in tokens, cut between characters"
    (result,) = path.results([item], **parameters)
    assert result.truncated
    assert result.tokens_dropped == len(head) + len(item.encode()) + len(tail) - len(ids)
    assert result.prompt_tokens == len(ids)


def test_an_item_that_fits_to_the_token_is_not_cut_and_one_token_more_is():
    room = 100 - len(sequences(path_of(), [""], query="q", template=ASK, **LABELS)[0])
    results = path_of().results(["x" * room, "x" * (room + 1)], query="q", template=ASK, **LABELS)
    assert [(result.truncated, result.tokens_dropped, result.prompt_tokens) for result in results] == [
        (False, 0, 100),
        (True, 1, 100),
    ]


def test_where_cutting_is_an_error_the_long_item_fails_alone():
    items = ["short", "long " * 50, "short too"]
    results = path_of().results(items, query="q", template=ASK, truncation="error", **LABELS)
    assert [result.error for result in results] == [None, "item_too_long", None]
    assert [result.score for result in results] == [0.5, None, 0.5]
    assert results[1].prompt_tokens == 0


def test_a_long_target_takes_its_room_from_the_item_and_never_from_itself():
    path = path_of()
    query = "what is it that is asked here?"
    parameters = {"query": query, "template": QUERY_LIKELIHOOD, "method": "likelihood"}
    (ids,) = sequences(path, ["x" * 200], **parameters)
    target = path.tokenizer.encode_texts([" " + query])[0].tolist()
    assert ids[-(len(target) - 1) :] == target[:-1]
    assert len(ids) == 100


@pytest.mark.parametrize("text", ["x", "<s>", "<s><s>x", "<|start|>", ""])
@pytest.mark.parametrize("template", [NONE, ASK, CHAT, QUERY_LIKELIHOOD], ids=lambda template: template.name)
@pytest.mark.parametrize("bos", [True, False])
def test_a_token_that_begins_a_text_comes_once_or_never_and_never_from_what_a_user_wrote(bos, template, text):
    path = path_of(bos=bos)
    asked = [LABELS, {"method": "likelihood", "labels": ["<s>", "yes"]}]
    for parameters in asked:
        for ids in sequences(path, [text, text * 2], query=f"{text}?", template=template, **parameters):
            begin = path.tokenizer.encode_control("<s>")[0]
            assert ids.count(begin) == (bos or template is CHAT)
            assert ids[0] == begin or not (bos or template is CHAT)
            assert sum(token > 255 for token in ids) == (bos or template is CHAT) + 2 * (template in (ASK, CHAT))
