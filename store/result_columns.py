"""Results of many items as columns: what readers of millions are given, computed without a step of Python an item.

The numbers are those of ``core.results.item_results`` (a property test holds the two against each other). A number
that an item has not is NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from itertools import repeat
from typing import Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from core.jobs import JobParameters
from core.results import ItemResult, StoredChunk

FEW_COLUMNS = 7  # from eight on numpy adds in another order

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Objects = NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class Columns:
    """Results of some items, a row each: N items, and L labels, the most that one of them has; the others' are NaN."""

    positions: Integers  # places in the job
    chunk_nos: Integers
    indexes: Integers
    query_nos: Integers
    ids: Objects  # None: without
    errors: Objects  # None: it has a score
    evidence: Objects  # None: never scored
    nums_labels: Integers
    logprobs: NDArray[np.float32]  # N x L
    scores: Floats
    probabilities: Floats  # N x L
    masses: Floats
    prompt_tokens: NDArray[np.int32]
    cached_tokens: NDArray[np.int32]
    tokens_dropped: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, rows: NDArray[Any] | slice) -> Columns:
        """Some of the rows, in that order."""
        return Columns(*(getattr(self, field.name)[rows] for field in fields(Columns)))

    def after(self, position: int) -> Columns:
        """The rows from ``position`` on."""
        return self if not len(self) or self.positions[0] >= position else self.take(self.positions >= position)

    def with_status(self, status: str | None) -> Columns:
        """Those that succeeded, or failed; all without a status."""
        if status is None:
            return self
        return self.take((self.errors == None) == (status == "succeeded"))  # noqa: E711 - of each element

    def to_items(self, include: Collection[str] = ()) -> list[ItemResult]:
        """An item's result for each row; ``include`` names fields that are on request."""
        return list(
            map(
                ItemResult,
                self.indexes.tolist(),
                self.ids.tolist(),
                _optional(self.scores),
                self.lists(self.probabilities),
                _optional(self.masses),
                self.prompt_tokens.tolist(),
                self.cached_tokens.tolist(),
                (self.tokens_dropped > 0).tolist(),
                self.tokens_dropped.tolist(),
                self.errors.tolist(),
                self.logprob_lists() if "label_logprobs" in include else repeat(UNSET),
                self.evidence.tolist() if "evidence" in include else repeat(UNSET),
            )
        )

    def lists(self, values: NDArray[Any]) -> list[list[float] | None]:
        """The rows of an N x L column as lists, each with its own number of labels; None where an item has none."""
        found: list[Any] = values.tolist()
        if values.shape[1] == 0:
            return [None] * len(found)
        for row in np.flatnonzero(self.nums_labels < values.shape[1]).tolist():
            found[row] = found[row][: self.nums_labels[row]]
        for row in np.flatnonzero(np.isnan(values[:, 0])).tolist():
            found[row] = None
        return found

    def logprob_lists(self) -> list[list[float | None] | None]:
        """The log-probabilities as lists, None in place of minus infinity; None for an item that failed."""
        found: list[Any] = self.lists(self.logprobs)
        for row in np.flatnonzero(np.isneginf(self.logprobs).any(axis=1)).tolist():
            found[row] = [None if value == -np.inf else value for value in found[row]]
        return found


def of_chunk(stored: StoredChunk, parameters: JobParameters) -> Columns:
    """A chunk's results; columns of ``stored`` may be lists or arrays."""
    chunk = stored.results
    num_items = chunk.num_items
    positions = np.arange(stored.first_index, stored.first_index + num_items)
    nums_labels, logprobs = _matrix(chunk.label_logprobs, chunk.label_offsets, num_items)
    errors = _objects(chunk.errors, num_items)
    if chunk.errors is not None:
        logprobs = np.where((errors == None)[:, None], logprobs, np.float32("nan"))  # noqa: E711 - of each element
    scores, probabilities, masses = _answers(logprobs, nums_labels, parameters, chunk.calibrated)
    evidence = np.empty(num_items, object)
    evidence[:] = [stored.evidence] * num_items
    return Columns(
        positions=positions,
        chunk_nos=np.full(num_items, stored.chunk_no),
        indexes=positions if chunk.item_indexes is None else np.asarray(chunk.item_indexes, np.int64),
        query_nos=_integers(chunk.query_nos, num_items, np.int64),
        ids=_objects(chunk.item_ids, num_items),
        errors=errors,
        evidence=evidence,
        nums_labels=nums_labels,
        logprobs=logprobs,
        scores=scores,
        probabilities=probabilities,
        masses=masses,
        prompt_tokens=_integers(chunk.prompt_tokens, num_items, np.int32),
        cached_tokens=_integers(chunk.cached_tokens, num_items, np.int32),
        tokens_dropped=_integers(chunk.tokens_dropped, num_items, np.int32),
    )


def join(parts: Sequence[Columns]) -> Columns:
    """All rows, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    width = max(part.logprobs.shape[1] for part in parts)
    return Columns(
        *(np.concatenate([_widened(getattr(part, field.name), width) for part in parts]) for field in fields(Columns))
    )


def _answers(
    logprobs: NDArray[np.float32], nums_labels: Integers, parameters: JobParameters, is_calibrated: bool
) -> tuple[Floats, Floats, Floats]:
    """Scores, probabilities and masses, as ``core.results`` defines them."""
    num_items, width = logprobs.shape
    nothing = np.full(num_items, np.nan)
    if width == 0:
        return nothing, np.empty((num_items, 0)), nothing
    values = logprobs.astype(np.float64)
    is_likelihood = parameters.method == "likelihood"
    exact = np.exp(values)
    probabilities = _softmax(values) if parameters.apply_softmax or is_likelihood or is_calibrated else exact
    masses = nothing if is_likelihood or is_calibrated else np.minimum(_sums(exact), 1.0)
    scores = probabilities[:, 0].copy()
    if is_likelihood:
        is_alone = nums_labels == 1
        scores[is_alone] = values[is_alone, 0]
        probabilities[is_alone] = np.nan
    return scores, probabilities, masses


def _softmax(values: Floats) -> Floats:
    weights: Floats = np.exp(values - _by_column(np.fmax, values)[:, None])
    weights /= _sums(weights)[:, None]
    return weights


def _sums(values: Floats) -> Floats:
    """Of each row, whose NaNs are padding; NaN where the whole row is."""
    sums = _by_column(np.add, np.where(np.isnan(values), 0.0, values))
    sums[np.isnan(values[:, 0])] = np.nan
    return sums


def _by_column(ufunc: np.ufunc, values: Floats) -> Floats:
    """The reduction of each row: of few columns, column by column, which is the same to the last bit and far faster."""
    if values.shape[1] > FEW_COLUMNS:
        reduced: Floats = ufunc.reduce(values, axis=1)
        return reduced
    return reduce(ufunc, values.T[1:], values[:, 0].copy())


def _matrix(
    logprobs: Sequence[float] | NDArray[Any], offsets: Sequence[int] | NDArray[Any] | None, num_items: int
) -> tuple[Integers, NDArray[np.float32]]:
    """The flat column as N x L, and how many labels each item has."""
    flat = np.asarray(logprobs, np.float32)
    if offsets is None:
        matrix = flat.reshape(num_items, -1) if len(flat) else np.empty((num_items, 0), np.float32)
        return np.full(num_items, matrix.shape[1]), matrix
    bounds = np.asarray(offsets, np.int64)
    nums_labels = bounds[1:] - bounds[:-1]
    matrix = np.full((num_items, int(nums_labels.max(initial=0))), np.nan, np.float32)
    matrix[np.arange(matrix.shape[1]) < nums_labels[:, None]] = flat
    return nums_labels, matrix


def _widened(values: NDArray[Any], width: int) -> NDArray[Any]:
    if values.ndim == 1 or values.shape[1] == width:
        return values
    return np.pad(values, ((0, 0), (0, width - values.shape[1])), constant_values=np.nan)


def _objects(values: Sequence[Any] | None, num_items: int) -> Objects:
    made = np.empty(num_items, object)
    if values is not None:
        made[:] = values
    return made


def _integers(values: Any, num_items: int, dtype: type[np.integer[Any]]) -> NDArray[Any]:
    return np.zeros(num_items, dtype) if values is None else np.asarray(values, dtype)


def _optional(values: Floats) -> list[float | None]:
    """A list with None in place of NaN."""
    found: list[Any] = values.tolist()
    for row in np.flatnonzero(np.isnan(values)).tolist():
        found[row] = None
    return found
