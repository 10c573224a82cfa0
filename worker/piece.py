"""Sequences on their way through the batcher: what one thread asks for, and what one batch takes of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from core.results import ItemError
from worker.batches import plan_padded, shared_prefixes
from worker.engine.protocol import Batch, BoolArray, FloatArray, IntArray, Layout, Prompts, num_scored


class Request:
    """One thread's prompts, and their outcomes as they come in. Requests are numbered in the order of arrival."""

    def __init__(self, number: int, prompts: Prompts, traceparent: str = "") -> None:
        num_sequences = len(prompts.lengths_B)
        assert len(prompts.label_ids_BL) == num_sequences
        assert len(prompts.token_ids_T) == prompts.lengths_B.sum()
        self.number = number
        self.prompts = prompts
        self.traceparent = traceparent  # of the chunk's span
        self.ends = np.cumsum(prompts.lengths_B, dtype=np.int64)
        self.label_logprobs: FloatArray = np.full(prompts.label_ids_BL.shape, np.nan, np.float32)
        self.cached_tokens = np.zeros(num_sequences, np.int32)
        is_empty = prompts.lengths_B == 0
        self.errors: list[ItemError | None] = [ItemError.EMPTY_PROMPT if empty else None for empty in is_empty.tolist()]
        self.num_waiting = num_sequences - int(is_empty.sum())
        self.failure: Exception | None = None
        self.is_done = threading.Event()
        self._tokens = np.ascontiguousarray(prompts.token_ids_T, np.int32).data

    def piece(self) -> Piece:
        """All its sequences that have a token."""
        rows = np.flatnonzero(self.prompts.lengths_B)
        return Piece({self.number: self}, np.full(len(rows), self.number, np.int64), rows)

    def tokens(self, start: int, end: int) -> memoryview:
        """Some of its token ids, all rows lying end to end."""
        return self._tokens[start:end]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Sequences, each named by the number of its request and its row there; most often those of one batch.

    ``num_deaths`` counts the engine deaths with a lone sequence in it; ``is_suspect``: it was in a batch that failed whole;
    ``is_apart``: no sequence may reach another one's score.
    """

    requests: Mapping[int, Request]
    numbers: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    num_deaths: int = 0
    is_suspect: bool = False
    is_apart: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def oldest(self) -> int:
        """The number of the request that has waited longest."""
        return int(self.numbers.min())

    @property
    def is_deterministic(self) -> bool:
        """Whether its requests are: all are, or none is."""
        return self.requests[int(self.numbers[0])].prompts.is_deterministic

    def parts(self) -> Iterator[tuple[Request, npt.NDArray[np.bool_]]]:
        """Its requests, each with the mask of its sequences."""
        if len(self.requests) == 1 and len(self):  # a lone small job waits for every step here
            yield next(iter(self.requests.values())), np.ones(len(self), np.bool_)
            return
        for number in np.unique(self.numbers).tolist():
            yield self.requests[number], self.numbers == number

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each sequence."""
        lengths = np.empty(len(self), np.int64)
        for request, mask in self.parts():
            lengths[mask] = request.prompts.lengths_B[self.rows[mask]]
        return lengths

    def tokens(self) -> list[memoryview]:
        """Token ids of each sequence, where they lie."""
        ends = np.empty(len(self), np.int64)
        for request, mask in self.parts():
            ends[mask] = request.ends[self.rows[mask]]
        bounds = zip(self.numbers.tolist(), (ends - self.lengths()).tolist(), ends.tolist(), strict=True)
        return [self.requests[number].tokens(start, end) for number, start, end in bounds]

    def label_ids(self) -> IntArray:
        """Label ids of each sequence, filled up to the most that any of its requests has."""
        width = max(request.prompts.label_ids_BL.shape[1] for request, _ in self.parts())
        label_ids = np.full((len(self), width), -1, np.int32)
        for request, mask in self.parts():
            own = request.prompts.label_ids_BL
            label_ids[mask, : own.shape[1]] = own[self.rows[mask]]
        return label_ids

    def is_path(self) -> BoolArray:
        """Which sequences' labels are a path."""
        is_path = np.empty(len(self), np.bool_)
        for request, mask in self.parts():
            is_path[mask] = request.prompts.is_path_B[self.rows[mask]]
        return is_path

    def batch(self, layout: Layout) -> Batch:
        """All of it as one batch; deterministic sequences share nothing in any layout.

        Sequences that are to be apart make a deterministic batch, whose rows don't meet; a lone one is apart as it is.
        """
        tokens, label_ids, is_path = self.tokens(), self.label_ids(), self.is_path()
        is_deterministic = self.is_deterministic or (self.is_apart and len(self) > 1)
        is_sharing = layout == "packed" and not is_deterministic
        return Batch(
            token_ids_T=np.frombuffer(b"".join(tokens), np.int32),
            lengths_B=self.lengths().astype(np.int32),
            label_ids_BL=label_ids,
            shared_B=shared_prefixes(tokens, num_scored(label_ids, is_path))
            if is_sharing
            else np.zeros(len(self), np.int32),
            is_path_B=is_path,
            is_deterministic=is_deterministic,
            is_suspect=self.is_suspect,
        )

    def keep(self, logprobs: FloatArray, cached_tokens: IntArray, is_bad: BoolArray) -> None:
        """Write its scores into its requests; bad ones fail."""
        for request, mask in self.parts():
            rows = self.rows[mask]
            request.label_logprobs[rows] = logprobs[:, : request.label_logprobs.shape[1]][mask]
            request.cached_tokens[rows] = cached_tokens[mask]
            for row in self.rows[mask & is_bad].tolist():
                request.label_logprobs[row] = np.nan
                request.errors[row] = ItemError.NON_FINITE_SCORE

    def pick(self, positions: npt.NDArray[np.int64] | BoolArray | slice) -> Piece:
        """The sequences at these positions, or where the mask says so."""
        return Piece(self.requests, self.numbers[positions], self.rows[positions])

    def halves(self) -> list[Piece]:
        """Two pieces with the sequences of this one."""
        middle = len(self) // 2
        parts = (slice(middle), slice(middle, None))
        return [replace(self.pick(part), is_suspect=True, is_apart=self.is_apart) for part in parts]

    def apart(self, max_tokens: int) -> list[Piece]:
        """Pieces with the sequences of this one, each to be scored as if it were alone."""
        return [replace(self.pick(part), is_apart=True) for part in plan_padded(self.lengths(), max_tokens)]

    def after_death(self) -> Piece:
        """The same sequence, one engine death later."""
        return replace(self, num_deaths=self.num_deaths + 1, is_suspect=True)


def merge(pieces: list[Piece]) -> Piece:
    """One piece of all the sequences."""
    requests = {request.number: request for piece in pieces for request, _ in piece.parts()}
    return Piece(
        requests, np.concatenate([piece.numbers for piece in pieces]), np.concatenate([piece.rows for piece in pieces])
    )
