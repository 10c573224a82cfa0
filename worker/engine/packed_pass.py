"""One forward pass of a packed batch: planned on the host in one flat buffer, so that one copy brings all of it over.

The buffer's sections have sizes that are rounded up, so that few different ones occur: tokens that fill up are segments
of their own that nobody reads, at least one of them, rows that fill up are no tile's, and tiles that fill up have no rows.
Those tokens are the pass's own first one: nothing that is no number comes into it that its sequences don't bring.

    T = packed tokens, Q = rows of the last layer, N = tiles, R = scored positions, L = most labels
"""

# ruff: noqa: N815 - arrays carry their shape in the name
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from label_kernels.attention_plan import MAX_STRETCHES, AttentionPlan, heads_per_tile, plan_all_tables
from label_kernels.tuned import tuned_for

from worker.engine.packed_attention import Heads, Packed
from worker.engine.packed_head import padded_labels, padded_rows
from worker.engine.prefix_tree import PrefixTree
from worker.engine.protocol import NO_LABEL, Batch, IntArray
from worker.engine.scored import ScoredPositions, scored_positions

_FILLER = 64  # tokens of a segment that fills up
_ALIGNED = 32  # sections begin at multiples of so many numbers, as kernels like their arrays to
_ROW_TOKEN = 5  # the section's place
_FIXED_COLUMNS = 6  # of a tile; its stretches follow
_KEPT_SHAPES = 256  # whose sections are known: those of graphs, and of full batches

Section = tuple[int, tuple[int, ...]]  # where it begins, and its shape


class PassShape(NamedTuple):
    """The sizes of a pass, filled up."""

    tokens: int
    tiles: int
    rows: int
    row_tiles: int
    stretches: int

    def sections(self) -> tuple[Section, ...]:
        """Token ids · tokens' starts and positions · tiles · rows' tokens, starts and positions · rows' tiles."""
        return _sections(self)

    def holds(self, needed: PassShape) -> bool:
        """Whether a pass that needs these sizes can be filled up to this one."""
        return all(own >= other for own, other in zip(self, needed, strict=True))

    @property
    def size(self) -> int:
        """How many numbers all sections take."""
        return self.sections()[-1][0]


@lru_cache(maxsize=_KEPT_SHAPES)
def _sections(shape: PassShape) -> tuple[Section, ...]:
    columns = _FIXED_COLUMNS + 2 * shape.stretches
    shapes: list[tuple[int, ...]] = [(shape.tokens,)] * 4 + [(shape.tiles, columns)]
    shapes += [(shape.rows,)] * 3 + [(shape.row_tiles, columns)]
    *begins, end = accumulate((_up(prod(each), _ALIGNED) for each in shapes), initial=0)
    return (*zip(begins, shapes, strict=True), (end, ()))


@dataclass(frozen=True, slots=True, eq=False)
class PassInputs:
    """The sections, read from a buffer on the device."""

    ids_1T: torch.Tensor
    position_1T: torch.Tensor
    packed: Packed

    @classmethod
    def read(cls, flat: torch.Tensor, shape: PassShape, tile_rows: int) -> PassInputs:
        """Views of the buffer; ids become 64 bits wide, as models like them."""
        ids, token, start, position, tiles, row_token, row_start, row_position, row_tiles = (
            flat[begin:end].narrow(0, 0, prod(size)).view(size)
            for (begin, size), (end, _) in pairwise(shape.sections())
        )
        for varying in (tiles, row_tiles):
            torch._dynamo.maybe_mark_dynamic(varying, [0, 1])  # noqa: SLF001 - it has no public name
        return cls(
            ids_1T=ids.long()[None],
            position_1T=position.long()[None],
            packed=Packed(
                AttentionPlan(tiles, token, start, position, tile_rows),
                rows_Q=row_token.long(),
                rows_plan=AttentionPlan(row_tiles, row_token, row_start, row_position, tile_rows),
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class HostPass:
    """A planned pass: ``flat`` holds the sections of ``shape`` and then the label ids [rows of the head, L]."""

    flat: torch.Tensor
    shape: PassShape
    labels_shape: tuple[int, int]
    scored: ScoredPositions
    tile_rows: int

    @property
    def label_ids(self) -> torch.Tensor:
        """The label ids, where they lie."""
        return self.flat[self.shape.size :].view(self.labels_shape)


class PassPlanner:
    """Plans passes for a model's heads on a device; ``shapes`` are those that a pass is filled up to, smallest first."""

    def __init__(self, heads: Heads, device: torch.device, shapes: tuple[PassShape, ...] = ()) -> None:
        rows = tuned_for(device).attention(heads.head_dim).rows
        self.tile_rows = rows // heads_per_tile(heads.num_heads, heads.num_kv_heads)
        self._is_pinned = device.type == "cuda"
        self._shapes = shapes

    def plan(self, batch: Batch, tree: PrefixTree) -> HostPass:
        """The pass that computes this tree of the batch's tokens."""
        scored = scored_positions(batch.lengths_B, batch.label_ids_BL, batch.is_path_B)
        rows_R = tree.tokens(scored.sequence_R, scored.position_R)
        ids_T = batch.token_ids_T[tree.source_T]
        shape = self._shapes_for(len(ids_T), len(rows_R))
        ids_T, lengths_S, parents_S = _filled(ids_T, tree, shape[0].tokens)
        tables = plan_all_tables(lengths_S, parents_S, (None, rows_R), self.tile_rows)
        (tiles, columns), (row_tiles, row_columns) = tables
        needed = PassShape(
            tokens=len(ids_T),
            tiles=_up(len(tiles), 8),
            rows=padded_rows(len(rows_R)),
            row_tiles=_up(len(row_tiles), 8),
            stretches=(tiles.shape[1] - _FIXED_COLUMNS) // 2,
        )
        chosen = next((each for each in shape if each.holds(needed)), needed)
        arrays = (ids_T, *columns, tiles, *row_columns, row_tiles)
        return self._write(chosen, arrays, scored, padded_rows(len(rows_R)))

    def _shapes_for(self, num_tokens: int, num_rows: int) -> tuple[PassShape, ...]:
        """The smallest kept shape that may hold the pass, or one of no sizes but its tokens."""
        head_rows = padded_rows(num_rows)
        for shape in self._shapes:
            if shape.tokens > num_tokens and shape.rows >= head_rows:
                return (shape,)
        return (PassShape(_up(max(num_tokens + 1, 32), 16), 0, 0, 0, 0),)

    def _write(
        self, shape: PassShape, arrays: tuple[npt.NDArray[np.integer], ...], scored: ScoredPositions, head_rows: int
    ) -> HostPass:
        labels_shape = (head_rows, padded_labels(scored.label_ids_RL.shape[1]))
        size = shape.size
        flat = torch.empty(size + labels_shape[0] * labels_shape[1], dtype=torch.int32, pin_memory=self._is_pinned)
        numbers = flat.numpy()
        sections = shape.sections()
        numbers[:size] = 0
        for (begin, section), array in zip(sections, arrays, strict=False):
            view = numbers[begin : begin + prod(section)].reshape(section)
            view[tuple(map(slice, array.shape))] = array
        row_token = sections[_ROW_TOKEN][0]
        numbers[row_token + len(scored.sequence_R) : row_token + shape.rows] = shape.tokens - 1  # one that nobody reads
        labels = numbers[size:].reshape(labels_shape)
        labels[:] = NO_LABEL
        labels[: len(scored.label_ids_RL), : scored.label_ids_RL.shape[1]] = scored.label_ids_RL
        return HostPass(flat, shape, labels_shape, scored, self.tile_rows)


def graph_shape(num_tokens: int, tile_rows: int) -> PassShape:
    """The sizes that most passes of up to so many tokens can be filled up to."""
    rows = _up(num_tokens // 8, 16)
    return PassShape(num_tokens, _up(2 * num_tokens // tile_rows + rows, 8), rows, rows, MAX_STRETCHES)


def _filled(
    ids_T: IntArray, tree: PrefixTree, num_tokens: int
) -> tuple[IntArray, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    missing = num_tokens - len(ids_T)
    fillers = [_FILLER] * (missing // _FILLER) + ([missing % _FILLER] if missing % _FILLER else [])
    return (
        np.concatenate([ids_T, np.repeat(ids_T[:1], missing)]),
        np.concatenate([tree.lengths_S, np.array(fillers, np.int64)]),
        np.concatenate([tree.parents_S, np.full(len(fillers), -1, np.int64)]),
    )


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
