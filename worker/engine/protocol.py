"""What an engine is to the rest of the worker: token ids in, label log-probabilities out. It knows no text.

Arrays are NumPy's, so that this file and everything that talks to an engine runs without torch.

    B = sequences, T = tokens of all of them end to end, L = most labels of any sequence

    Broken
    ├── EngineRefused          the model can't be served as it is asked for; a restart would not help
    ├── EngineDied             the engine process ended with the batch in it
    │   └── EngineHung         ... because the watchdog killed it: no progress
    └── EngineOutOfMemory      the batch does not fit the device; the engine lives
"""

# ruff: noqa: N815 - arrays carry their shape in the name
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from core.errors import Broken
from core.model_cards import ModelCard

Layout = Literal["padded", "packed"]
IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]

NO_LABEL = -1  # fills label_ids_BL where a sequence has fewer than L labels


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """The sequences of one chunk, in its order: int32, ``label_ids_BL`` filled up with -1."""

    token_ids_T: IntArray
    lengths_B: IntArray
    label_ids_BL: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One forward pass. ``shared_B`` counts the leading tokens that a sequence shares with its predecessor."""

    token_ids_T: IntArray
    lengths_B: IntArray
    label_ids_BL: IntArray
    shared_B: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Log-probabilities over the vocabulary, NaN where there is no label; tokens that were not computed anew."""

    label_logprobs_BL: FloatArray
    cached_tokens_B: IntArray


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a started engine is. ``choices`` says what it chose by itself, for the log."""

    card: ModelCard
    tokenizer_json: bytes | None
    engine_version: str
    max_batch_tokens: int
    layout: Layout
    device: str
    choices: dict[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, str | int]:
        """What is worth a line in the log, once."""
        return {
            "model": self.card.name,
            "revision": self.card.revision,
            "dtype": self.card.dtype,
            "engine": self.engine_version,
            "device": self.device,
            "layout": self.layout,
            "max_batch_tokens": self.max_batch_tokens,
            **self.choices,
        }


class Engine(Protocol):
    """A loaded model."""

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""
        ...

    def score(self, batch: Batch) -> Scores:
        """The scores of every sequence, in the batch's order. Raises EngineOutOfMemory and nothing else on purpose."""
        ...


class EngineRefused(Broken):
    """The model can't be served as it is asked for. The message says why, and a restart would say it again."""


class EngineDied(Broken):
    """The engine process ended. ``was_running``: it was at work on this batch, not on the one before it."""

    def __init__(self, message: str, *, was_running: bool) -> None:
        super().__init__(message)
        self.was_running = was_running


class EngineHung(EngineDied):
    """The engine made no progress for too long and was killed."""


class EngineOutOfMemory(Broken):
    """The batch does not fit the device. The engine lives and can take a smaller one."""
