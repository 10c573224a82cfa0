"""The plan of one packed batch for ``prefix_attention``: which keys each tile of query rows reads.

A packed batch is one row of T tokens, cut into segments. A segment has at most one parent, an earlier segment, and
continues it: its tokens see all tokens of its ancestors (template, then query, ...) and their own segment causally.
A segment's *chain* is its ancestors, root first. Planning is numpy on the host, a millisecond for 65,536 tokens.

Names: S = segments, T = tokens, Q = query rows, N = tiles, R = stretches of a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from label_kernels.tuned import tuned_for

MAX_STRETCHES = 4  # a chain may lie in this many separate places; tiles hold one or this many
_HEAVY = 8  # times the mean number of keys
Ints = npt.NDArray[np.int64]


class AttentionPlan(NamedTuple):
    """Tensors on the device of the batch, and one number. Make it with ``plan_attention``.

    ``tiles`` is int32 [N, 6 + 2 R], very heavy tiles first. The keys of a tile are numbered from its chain's first token
    on, so a key's number is its position; the tile's own tokens follow the chain. Columns: first query row · number of
    query rows · number of keys · number of keys that every row sees, at the front · number of keys in the chain ·
    what to add to the number of an own key to get its token · R times: the stretch's last key number + 1, what to add
    to numbers below it (nearest stretch first, so later ones override).
    """

    tiles: torch.Tensor
    token_Q: torch.Tensor  # int32: the token that a query row stands for
    segment_start_Q: torch.Tensor  # int32: the first token of that token's segment
    position_Q: torch.Tensor  # int32: that token's position, its ancestors counted
    tile_rows: int  # most query rows of a tile


def plan_attention(
    lengths: Sequence[int] | Ints,
    parents: Sequence[int] | Ints,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    device: torch.device | str,
    rows: Ints | None = None,
) -> AttentionPlan:
    """Plan attention over segments that lie one after another in the packed row.

    ``lengths`` are tokens per segment, at least 1; ``parents`` the index of each one's parent, before it, or -1.
    Short neighbours with the same parent share tiles, so lay siblings side by side. ``rows`` are the tokens, ascending, that
    the query tensor holds rows for (a last layer needs only scored ones); default: all. One plan serves every layer
    with these head counts. The copy to the device does not wait. Raises ValueError where a chain lies in more than
    ``MAX_STRETCHES`` places or the segments are no forest.
    """
    device = torch.device(device)
    tile_rows = tuned_for(device).attention(head_dim).rows // heads_per_tile(num_heads, num_kv_heads)
    tiles, columns = plan_tables(np.asarray(lengths, np.int64), np.asarray(parents, np.int64), rows, tile_rows)
    flat = torch.from_numpy(np.concatenate([tiles.ravel(), *columns]).astype(np.int32))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    num_rows = len(columns[0])
    tiles_flat, token_Q, start_Q, position_Q = torch.split(flat, [tiles.size, num_rows, num_rows, num_rows])
    return AttentionPlan(tiles_flat.view(tiles.shape), token_Q, start_Q, position_Q, tile_rows)


def heads_per_tile(num_heads: int, num_kv_heads: int) -> int:
    """Return how many query heads of one KV head share a tile: all of them up to 8, else the largest divisor."""
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads cannot share {num_kv_heads} KV heads evenly")
    group = num_heads // num_kv_heads
    return max(heads for heads in range(1, 9) if group % heads == 0)


def plan_tables(
    length_S: Ints, parent_S: Ints, row_tokens: Ints | None, tile_rows: int
) -> tuple[Ints, tuple[Ints, Ints, Ints]]:
    """Return the tiles and the three columns of ``AttentionPlan``, on the host."""
    (tables,) = plan_all_tables(length_S, parent_S, (row_tokens,), tile_rows)
    return tables


def plan_all_tables(
    length_S: Ints, parent_S: Ints, all_row_tokens: Sequence[Ints | None], tile_rows: int
) -> list[tuple[Ints, tuple[Ints, Ints, Ints]]]:
    """Return what ``plan_tables`` does for each of these row tokens, whose segments are the same."""
    _check(length_S, parent_S)
    start_S = np.cumsum(length_S) - length_S
    chains = _chains(length_S, parent_S, start_S)
    return [_tables(length_S, parent_S, start_S, chains, row_tokens, tile_rows) for row_tokens in all_row_tokens]


def _tables(
    length_S: Ints,
    parent_S: Ints,
    start_S: Ints,
    chains: tuple[Ints, Ints, Ints],
    row_tokens: Ints | None,
    tile_rows: int,
) -> tuple[Ints, tuple[Ints, Ints, Ints]]:
    prefix_S, end_SR, shift_SR = chains
    if row_tokens is None:
        segment_Q = np.repeat(np.arange(len(length_S)), length_S)
        token_Q = np.arange(len(segment_Q))
        group_Q = _tile_groups(length_S, parent_S, prefix_S, tile_rows)[segment_Q]
    else:
        token_Q = np.asarray(row_tokens, np.int64)
        segment_Q = group_Q = np.searchsorted(start_S, token_Q, side="right") - 1
        if len(token_Q) and (token_Q[0] < 0 or token_Q[-1] >= length_S.sum() or (np.diff(token_Q) <= 0).any()):
            raise ValueError(f"rows must be ascending tokens below {length_S.sum()}")

    first_row_N, num_rows_N = _cut(group_Q, tile_rows)
    first_token_N, last_token_N = token_Q[first_row_N], token_Q[first_row_N + num_rows_N - 1]
    segment_N = segment_Q[first_row_N]
    prefix_N, self_shift_N = prefix_S[segment_N], (start_S - prefix_S)[segment_N]
    is_one_segment_N = segment_N == segment_Q[first_row_N + num_rows_N - 1]
    num_keys_N = last_token_N + 1 - self_shift_N
    num_free_N = np.where(is_one_segment_N, first_token_N + 1 - self_shift_N, prefix_N)
    stretches = np.stack([end_SR[segment_N], shift_SR[segment_N]], axis=2).reshape(len(segment_N), -1)
    columns = (first_row_N, num_rows_N, num_keys_N, num_free_N, prefix_N, self_shift_N)
    tiles = np.column_stack([*columns, stretches])
    # Very heavy tiles first, so that none is left alone at the end; the others stay where they are, because neighbours
    # read the same keys from the cache.
    order_N = np.argsort(num_keys_N <= _HEAVY * num_keys_N.mean(), kind="stable")
    start_Q = start_S[segment_Q]
    return tiles[order_N], (token_Q, start_Q, prefix_S[segment_Q] + token_Q - start_Q)


def _check(length_S: Ints, parent_S: Ints) -> None:
    if length_S.ndim != 1 or length_S.shape != parent_S.shape or len(length_S) == 0:
        raise ValueError(f"as many parents as lengths are needed, not {parent_S.shape} and {length_S.shape}")
    if (length_S < 1).any():
        raise ValueError(f"segment {int((length_S < 1).argmax())} has no token")
    is_bad_S = (parent_S < -1) | (parent_S >= np.arange(len(parent_S)))
    if is_bad_S.any():
        bad = int(is_bad_S.argmax())
        raise ValueError(f"segment {bad} has parent {parent_S[bad]}, which is no earlier segment")
    if length_S.sum() >= 2**31:
        raise ValueError(f"{length_S.sum()} tokens are too many for one batch")


def _chains(length_S: Ints, parent_S: Ints, start_S: Ints) -> tuple[Ints, Ints, Ints]:
    """Return each chain's number of tokens, and its stretches as (end, shift) columns, nearest ancestor first."""
    prefix_S = np.zeros_like(length_S)
    ancestor_S = parent_S
    while (ancestor_S >= 0).any():
        prefix_S += np.where(ancestor_S >= 0, length_S[ancestor_S], 0)
        ancestor_S = np.where(ancestor_S >= 0, parent_S[ancestor_S], -1)

    # An ancestor holds the keys prefix .. prefix + length, at start .. start + length: neighbours have equal shifts.
    end_of_S, shift_of_S = prefix_S + length_S, start_S - prefix_S
    end_SR = np.zeros((len(length_S), MAX_STRETCHES), np.int64)
    shift_SR = np.zeros_like(end_SR)
    num_S = np.zeros_like(length_S)
    ancestor_S = parent_S
    while (ancestor_S >= 0).any():
        segment = np.flatnonzero(ancestor_S >= 0)
        ancestor = ancestor_S[segment]
        is_new = (num_S[segment] == 0) | (shift_of_S[ancestor] != shift_SR[segment, num_S[segment] - 1])
        segment, ancestor = segment[is_new], ancestor[is_new]
        if (num_S[segment] == MAX_STRETCHES).any():
            raise ValueError(f"a chain lies in more than {MAX_STRETCHES} places")
        end_SR[segment, num_S[segment]] = end_of_S[ancestor]
        shift_SR[segment, num_S[segment]] = shift_of_S[ancestor]
        num_S[segment] += 1
        ancestor_S = np.where(ancestor_S >= 0, parent_S[ancestor_S], -1)
    kept = 1 if num_S.max() <= 1 else MAX_STRETCHES
    return prefix_S, end_SR[:, :kept], shift_SR[:, :kept]


def _tile_groups(length_S: Ints, parent_S: Ints, prefix_S: Ints, tile_rows: int) -> Ints:
    """Number the groups of segments that may share tiles: short siblings side by side, and each long one alone.

    A tile of several segments reads all their keys for each row; a tile of one may have rows to spare, for which it
    reads the chain once more. The former costs less until the segment is about twice as long as the chain.
    """
    is_long_S = length_S >= np.maximum(tile_rows, 2 * prefix_S)
    is_new_S = np.diff(parent_S, prepend=-2) != 0
    is_new_S |= is_long_S
    is_new_S[1:] |= is_long_S[:-1]
    return np.cumsum(is_new_S)


def _cut(group_Q: Ints, tile_rows: int) -> tuple[Ints, Ints]:
    """Cut each run of equal groups into tiles of at most ``tile_rows``: first rows and numbers of rows."""
    first_G = np.flatnonzero(np.diff(group_Q, prepend=-1))
    num_G = np.diff(first_G, append=len(group_Q))
    tiles_G = -(-num_G // tile_rows)
    nth_N = np.arange(tiles_G.sum()) - np.repeat(np.cumsum(tiles_G) - tiles_G, tiles_G)
    first_N = np.repeat(first_G, tiles_G) + nth_N * tile_rows
    return first_N, np.minimum(np.repeat(first_G + num_G, tiles_G) - first_N, tile_rows)
