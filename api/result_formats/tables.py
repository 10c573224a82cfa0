"""Results as Arrow record batches, which Parquet files and Arrow streams are made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store import result_columns
from store.result_columns import Columns

pa.set_memory_pool(pa.system_memory_pool())  # gives back what it does not need: the front end has to stay small

EVIDENCE = ("template_version", "revision", "dtype", "engine_version")


def schema(include: Collection[str]) -> Any:
    """The columns, and what is in them. None of it depends on the job."""
    fields = [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("id", pa.string()),
        pa.field("score", pa.float64()),
        pa.field("probabilities", pa.list_(pa.float64())),
        pa.field("label_mass", pa.float64()),
        pa.field("prompt_tokens", pa.int32(), nullable=False),
        pa.field("cached_tokens", pa.int32(), nullable=False),
        pa.field("truncated", pa.bool_(), nullable=False),
        pa.field("tokens_dropped", pa.int32(), nullable=False),
        pa.field("error", pa.string()),
    ]
    if "label_logprobs" in include:
        fields.append(pa.field("label_logprobs", pa.list_(pa.float32())))
    if "evidence" in include:
        fields += [pa.field(name, pa.string()) for name in EVIDENCE]
    return pa.schema(fields)


def batches(columns: Iterable[Columns], include: Collection[str], *, num_rows: int) -> Iterator[Any]:
    """Record batches of about ``num_rows`` rows."""
    waiting: list[Columns] = []
    for some in columns:
        waiting.append(some)
        if sum(map(len, waiting)) >= num_rows:
            yield batch(result_columns.join(waiting), include)
            waiting = []
    if waiting:
        yield batch(result_columns.join(waiting), include)


def batch(some: Columns, include: Collection[str]) -> Any:
    """The rows as one record batch."""
    arrays = [
        pa.array(some.indexes),
        pa.array(some.ids, pa.string()),
        _optional(some.scores),
        _lists(some, some.probabilities),
        _optional(some.masses),
        pa.array(some.prompt_tokens),
        pa.array(some.cached_tokens),
        pa.array(some.tokens_dropped > 0),
        pa.array(some.tokens_dropped),
        pa.array(some.errors, pa.string()),
    ]
    if "label_logprobs" in include:
        arrays.append(_lists(some, some.logprobs))
    if "evidence" in include:
        found = some.evidence.tolist()
        arrays += [pa.array([getattr(evidence, name, None) for evidence in found], pa.string()) for name in EVIDENCE]
    return pa.record_batch(arrays, schema=schema(include))


def _optional(values: NDArray[Any]) -> Any:
    return pa.array(values, mask=np.isnan(values))


def _lists(some: Columns, values_NL: NDArray[Any]) -> Any:  # noqa: N803
    """Lists of each row's own number of labels; null where the item has none."""
    num_rows, width = values_NL.shape
    is_there = np.zeros(num_rows, bool) if width == 0 else ~np.isnan(values_NL[:, 0])
    nums_labels = np.where(is_there, some.nums_labels, 0)
    flat = values_NL[np.arange(width) < nums_labels[:, None]]
    offsets = np.concatenate([[0], np.cumsum(nums_labels)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(flat), mask=pa.array(~is_there))
