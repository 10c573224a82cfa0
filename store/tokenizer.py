"""The tokenizer of a model card: texts to token ids, without Transformers.

Text from users is text: a special token's name inside it is tokenised as the characters that it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tokenizers

from core.errors import Broken
from core.model_cards import ModelCard


class Tokenizer(Protocol):
    """What callers may rely on."""

    def encode(self, texts: list[str]) -> list[Sequence[int]]:
        """The ids of whole prompts, with the special tokens that the model expects around a text (BOS, once)."""

    def encode_plain(self, text: str) -> list[int]:
        """The ids of a piece of text, with nothing around it: for labels."""

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """For each token of ``encode_plain(text)`` the characters that it covers, as (start, end)."""


class ByteTokenizer:
    """The fake model's: a token is a byte of the text's UTF-8."""

    def encode(self, texts: list[str]) -> list[Sequence[int]]:
        """Each text's bytes."""
        return [text.encode() for text in texts]

    def encode_plain(self, text: str) -> list[int]:
        """The text's bytes."""
        return list(text.encode())

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Each byte covers its character."""
        return [(place, place + 1) for place, character in enumerate(text) for _ in character.encode()]


class JsonTokenizer:
    """A Hugging Face ``tokenizer.json``. Safe to share between threads; releases the GIL while it works."""

    def __init__(self, tokenizer_json: bytes) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_buffer(tokenizer_json)
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, texts: list[str]) -> list[Sequence[int]]:
        """Each text with what the model's post-processor puts around it."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=True)]

    def encode_plain(self, text: str) -> list[int]:
        """The text's tokens alone."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Where each token lies in the text."""
        offsets: list[tuple[int, int]] = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return offsets


def tokenizer_for(card: ModelCard, tokenizer_json: bytes | None) -> Tokenizer:
    """The tokenizer that the card names."""
    if card.tokenizer == "bytes":
        return ByteTokenizer()
    if tokenizer_json is None:
        raise Broken(f"the model {card.name} has a card but no tokenizer: publish it again by restarting its worker")
    return JsonTokenizer(tokenizer_json)
