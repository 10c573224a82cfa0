"""What an engine is to the rest of the worker: token ids in, label log-probabilities out. It knows no text.

Arrays are NumPy's, so that this file and everything that talks to an engine runs without torch.

    B = sequences, T = tokens of all of them end to end, L = most labels of any sequence

A sequence's labels are alternatives, all read at its last token; or, where ``is_path_B``, they are a path: its ids hold
a prompt and a target without the target's last token, and label j, which is the target's token j, is read at position
length - L_i + j, where the model says what comes next.

    Broken
    ├── EngineRefused          the model can't be served as it is asked for; a restart would not help
    ├── EngineDied             the engine process ended with the batch in it
    │   └── EngineHung         ... because the watchdog killed it: no progress
    └── EngineOutOfMemory      the batch does not fit the device; the engine lives
"""

# ruff: noqa: N815 - arrays carry their shape in the name
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from core.errors import Broken
from core.model_cards import ModelCard
from worker.engine.cost import CostModel

Layout = Literal["padded", "packed"]
IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

NO_LABEL = -1  # fills label_ids_BL where a sequence has fewer than L labels


def num_scored(label_ids_BL: IntArray, is_path_B: BoolArray) -> IntArray:
    """How many of its last positions each sequence is scored at: one, or as many as its path has tokens."""
    return np.where(is_path_B, (label_ids_BL != NO_LABEL).sum(axis=1), 1).astype(np.int32)


def _nothing() -> BoolArray:
    return np.zeros(0, np.bool_)


def _one_each(is_path_B: BoolArray, lengths_B: IntArray) -> BoolArray:
    if not len(is_path_B):
        return np.zeros(len(lengths_B), np.bool_)
    assert is_path_B.shape == lengths_B.shape, f"{len(is_path_B)} paths or not of {len(lengths_B)} sequences"
    return is_path_B


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """The sequences of one chunk, in its order: int32, ``label_ids_BL`` filled up with -1. No path by default.

    ``is_deterministic``: their scores have the same bits whatever else the engine has to do.
    """

    token_ids_T: IntArray
    lengths_B: IntArray
    label_ids_BL: IntArray
    is_path_B: BoolArray = field(default_factory=_nothing)
    is_deterministic: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_path_B", _one_each(self.is_path_B, self.lengths_B))


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One forward pass. ``shared_B`` counts the leading tokens that a sequence shares with its predecessor, up to
    the first position that it is scored at. No path by default. ``is_deterministic``: each score has the bits that it
    has in any other batch of the kind. ``is_suspect``: an engine died of some of it, so it runs with no other launched.
    """

    token_ids_T: IntArray
    lengths_B: IntArray
    label_ids_BL: IntArray
    shared_B: IntArray
    is_path_B: BoolArray = field(default_factory=_nothing)
    is_deterministic: bool = False
    is_suspect: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_path_B", _one_each(self.is_path_B, self.lengths_B))

    def part(self, first: int, last: int) -> Batch:
        """Some of its sequences, as a batch."""
        rows = slice(first, last)
        begin = int(self.lengths_B[:first].sum())
        shared_B = self.shared_B[rows].copy()
        shared_B[:1] = 0
        return Batch(
            token_ids_T=self.token_ids_T[begin : begin + int(self.lengths_B[rows].sum())],
            lengths_B=self.lengths_B[rows],
            label_ids_BL=self.label_ids_BL[rows],
            shared_B=shared_B,
            is_path_B=self.is_path_B[rows],
            is_deterministic=self.is_deterministic,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Log-probabilities over the vocabulary, NaN where there is no label; tokens that were not computed anew."""

    label_logprobs_BL: FloatArray
    cached_tokens_B: IntArray


Wait = Callable[[], Scores]
Launch = Callable[[], Wait]


def at_once(score: Callable[[], Scores]) -> Launch:
    """The launch of an engine that has its scores when its launch returns."""

    def launch() -> Wait:
        scores = score()
        return lambda: scores

    return launch


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a started engine is. ``choices`` says what it chose by itself, for the log; ``cost`` is None if not measured."""

    card: ModelCard
    tokenizer_json: bytes | None
    engine_version: str
    max_batch_tokens: int
    layout: Layout
    device: str
    launches_ahead: bool = False  # the next batch is launched before this one's scores are there
    choices: dict[str, str] = field(default_factory=dict)
    cost: CostModel | None = None

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

    def prepare(self, batch: Batch) -> Launch:
        """The same in three steps: what can be done from another thread while other batches run; the launch, in the
        order of the batches; and the wait for the scores, which may come after the next batch's launch.
        """
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
