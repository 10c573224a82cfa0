"""Model cards: what a worker publishes of the model that it serves, enough for a front end without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FAKE_MODEL = "fake"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A served model.

    ``vocab_size`` counts the ids that a tokenizer can make (added tokens included, padding rows of the embedding
    not). ``tokenizer`` says how texts become ids: ``bytes`` (the fake model: UTF-8 bytes), ``json`` (a Hugging
    Face ``tokenizer.json``, published beside the card) or ``fastokens`` (the same file, texts read by that library). ``default_label_token_ids`` is None where a job must
    name its labels.
    """

    name: str
    source: str
    revision: str
    dtype: str
    engine: str
    max_tokens: int
    vocab_size: int
    tokenizer: Literal["bytes", "json", "fastokens"]
    default_template: str = "none"
    default_label_token_ids: list[int] | None = None
