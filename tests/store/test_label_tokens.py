"""Labels as a model says them: the characters and nothing else, whatever a tokenizer puts before a text."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from store.label_tokens import label_tokens
from store.tokenizer import ByteTokenizer, JsonTokenizer


def read(tokenizer):
    return JsonTokenizer(tokenizer.to_str().encode(), is_fast=False)


@pytest.fixture(scope="module")
def of_sentencepiece():
    """A blank is put before every text and every blank is a bar, as Llama 2 and Mistral do."""
    words = ["<unk>", "▁", "\n", "y", "e", "s", "n", "o", "ye", "yes", "no", "▁yes", "▁no"]
    merges = [("y", "e"), ("ye", "s"), ("n", "o"), ("▁", "yes"), ("▁", "no")]
    made = tokenizers.Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, merges, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Replace("▁", " ")
    return read(made), words.index


@pytest.fixture(scope="module")
def of_bytes():
    """A blank is part of the word after it, as GPT-2, Llama 3 and Qwen do."""
    made = tokenizers.Tokenizer(
        models.BPE({"y": 0, "Ġ": 1, "Ċ": 2, "Ġy": 3, "ĊĊ": 4, "a": 5}, [("Ġ", "y"), ("Ċ", "Ċ")])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return read(made)


def test_a_blank_that_the_tokenizer_puts_before_a_text_is_no_part_of_a_label(of_sentencepiece):
    tokenizer, number = of_sentencepiece
    assert [ids.tolist() for ids in tokenizer.encode_texts(["yes"])] == [[number("▁yes")]]

    assert label_tokens(tokenizer, "yes") == [number("yes")]
    assert label_tokens(tokenizer, " yes") == [number("▁yes")]
    assert label_tokens(tokenizer, "yesno") == [number("yes"), number("no")]


def test_a_text_with_characters_that_the_tokenizer_does_not_know_is_no_token(of_sentencepiece):
    assert label_tokens(of_sentencepiece[0], "x") == []


def test_blanks_of_a_label_count(of_bytes):
    assert [label_tokens(of_bytes, text) for text in ("y", " y", "  y")] == [[0], [3], [1, 3]]


def test_a_label_that_grows_together_with_a_line_break_is_read_alone(of_bytes):
    assert label_tokens(of_bytes, "\n") == [2]
    assert label_tokens(of_bytes, "\n\n") == [4]


def test_bytes_are_themselves():
    assert label_tokens(ByteTokenizer(), "né") == [110, 195, 169]
    assert label_tokens(ByteTokenizer(), "") == []


def test_a_tokenizer_of_words_that_knows_no_line_break_reads_a_label_alone():
    words = tokenizers.Tokenizer(models.WordLevel({"[unk]": 0, "yes": 1, " no": 2}, unk_token="[unk]"))
    words.pre_tokenizer = pre_tokenizers.Split(" no", "isolated")
    assert [label_tokens(read(words), text) for text in ("yes", " no", "yes no", " yes")] == [[1], [2], [1, 2], []]
