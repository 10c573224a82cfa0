"""The tokenizer of a model card: texts to token ids, without Transformers.

Two readings, never mixed up: *text* (whatever a user wrote, and a template's words around it) is characters and nothing
else, and *control* (a template's own words) may hold special tokens.
"""

# ruff: noqa: N806 - arrays carry their shape in the name; B = texts, T = tokens

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import fastokens
import numpy as np
import tokenizers

from core.errors import Broken
from core.model_cards import ModelCard
from store.ragged import Ids, Ragged


class Tokenizer(Protocol):
    """What callers may rely on. Safe to share between threads."""

    @property
    def control_tokens(self) -> Sequence[str]:
        """The added tokens: what ``encode_control`` reads as one token each."""

    @property
    def bos(self) -> Sequence[int]:
        """What the model expects before a text: nothing, or one token."""

    @property
    def unknown(self) -> int | None:
        """The token that stands for any character that the tokenizer does not know, where it has one."""

    def encode_texts(self, texts: list[str]) -> list[Ids]:
        """Each text's ids, as characters: a special token's name inside it is no special token."""

    def encode_flat(self, texts: list[str]) -> Ragged:
        """The same, end to end."""

    def encode_control(self, text: str) -> list[int]:
        """The ids of a template's own words, special tokens read as such."""

    def ends(self, text: str) -> list[int]:
        """For each token of the text, the character where it ends."""


class ByteTokenizer:
    """The fake model's: a token is a byte of the text's UTF-8."""

    control_tokens: Sequence[str] = ()

    def __init__(self) -> None:
        self.bos: list[int] = []
        self.unknown: int | None = None

    def encode_texts(self, texts: list[str]) -> list[Ids]:
        """Each text's bytes."""
        return self.encode_flat(texts).rows()

    def encode_flat(self, texts: list[str]) -> Ragged:
        """The bytes of all texts."""
        encoded = [text.encode() for text in texts]
        lengths_B = np.fromiter(map(len, encoded), np.int32, len(encoded))
        return Ragged(np.frombuffer(b"".join(encoded), np.uint8).astype(np.int32), lengths_B)

    def encode_control(self, text: str) -> list[int]:
        """The text's bytes: there are no special tokens."""
        return list(text.encode())

    def ends(self, text: str) -> list[int]:
        """Each byte ends with its character."""
        return [place + 1 for place, character in enumerate(text) for _ in character.encode()]


class JsonTokenizer:
    """A Hugging Face ``tokenizer.json``, read by ``tokenizers``; texts by ``fastokens`` where the card says so."""

    def __init__(self, tokenizer_json: bytes, *, is_fast: bool) -> None:
        whole = json.loads(tokenizer_json)
        self.control_tokens = sorted((token["content"] for token in whole["added_tokens"]), key=len, reverse=True)
        self._text_json = text_only(whole)
        self._control = _whole(tokenizers.Tokenizer.from_buffer(tokenizer_json))
        self._fast = fastokens.Tokenizer.from_json_str(self._text_json) if is_fast else None
        self.bos = self._leading_specials()
        self.unknown = _unknown(whole["model"], self._control)

    @cached_property
    def _text(self) -> tokenizers.Tokenizer:
        """Made when it is first needed, which beside ``fastokens`` is seldom: a large vocabulary takes 100 MB."""
        return _whole(tokenizers.Tokenizer.from_str(self._text_json))

    def encode_texts(self, texts: list[str]) -> list[Ids]:
        """Each text's ids."""
        return self.encode_flat(texts).rows()

    def encode_flat(self, texts: list[str]) -> Ragged:
        """The texts, all at once; the GIL is free meanwhile."""
        if self._fast is None or not texts:
            return Ragged.of([np.array(each.ids, np.int32) for each in self._text.encode_batch_fast(texts)])
        flat, offsets = self._fast.encode_batch_flat(texts)
        lengths_B = np.diff(np.frombuffer(offsets, np.uint64)).astype(np.int32)
        return Ragged(np.frombuffer(flat, np.uint32).astype(np.int32), lengths_B)

    def encode_control(self, text: str) -> list[int]:
        """The template's words, nothing put around them."""
        ids: list[int] = self._control.encode(text, add_special_tokens=False).ids
        return ids

    def ends(self, text: str) -> list[int]:
        """Where each token ends in the text."""
        return [int(end) for _, end in self._text.encode(text, add_special_tokens=False).offsets]

    def _leading_specials(self) -> list[int]:
        """What the post-processor puts before a text. What it would put after one would hide the answer's place."""
        bare = self._control.encode("a", add_special_tokens=False).ids
        around: list[int] = self._control.encode("a", add_special_tokens=True).ids
        starts = [at for at in range(len(around)) if around[at : at + len(bare)] == bare]
        if not starts:
            raise Broken("the tokenizer changes a text's own tokens when it puts special tokens around it")
        return around[: starts[0]]


def _whole(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The tokenizer, which from now on neither cuts texts nor pads them."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _unknown(model: dict[str, object], tokenizer: tokenizers.Tokenizer) -> int | None:
    """The unknown token of a model of the kind Unigram (by id) or of any other (by name)."""
    name, number = model.get("unk_token"), model.get("unk_id")
    if isinstance(number, int):
        return number
    found: int | None = tokenizer.token_to_id(name) if isinstance(name, str) else None
    return found


def text_only(tokenizer: dict[str, object]) -> str:
    """The ``tokenizer.json`` without its added tokens and what it puts around a text."""
    return json.dumps({**tokenizer, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None})


def tokenizer_for(card: ModelCard, tokenizer_json: bytes | None) -> Tokenizer:
    """The tokenizer that the card names."""
    if card.tokenizer == "bytes":
        return ByteTokenizer()
    if tokenizer_json is None:
        raise Broken(f"the model {card.name} has a card but no tokenizer: publish it again by restarting its worker")
    return JsonTokenizer(tokenizer_json, is_fast=card.tokenizer == "fastokens")
