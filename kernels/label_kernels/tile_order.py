"""The order in which the programs of a large product walk its tiles, so that neighbours share what the cache holds."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def place_of(tile, num_row_tiles, num_column_tiles, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN201 - Triton reads none
    """Return the row tile and the column tile of one number: ``GROUP`` row tiles go along the columns together.

    As in Triton's tutorial on matrix multiplication ("L2 cache optimizations"); a last group may be smaller.
    """
    per_group = GROUP * num_column_tiles
    first = tile // per_group * GROUP
    size = tl.minimum(num_row_tiles - first, GROUP)
    return first + tile % per_group % size, tile % per_group // size
