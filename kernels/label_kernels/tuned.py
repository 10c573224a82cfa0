"""Launch configurations by chip, found once by measuring and kept here: nothing is searched at boot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class Gather:
    """``block``: logits that one program reads; ``overlaps``: the second stage starts while the first still runs."""

    block: int
    num_warps: int
    overlaps: bool


@dataclass(frozen=True, slots=True)
class Head:
    """Sizes of one product's tiles; ``programs``: how many at most, tiles of rows times slices of the vocabulary."""

    rows: int
    columns: int
    depth_bytes: int
    num_warps: int
    num_stages: int
    programs: int
    overlaps: bool  # the second stage starts while the first still runs


@dataclass(frozen=True, slots=True)
class Attention:
    """``rows``: query rows of a tile, tokens times the heads that share it; ``keys``: 16-bit keys read at a time.

    ``max_registers`` a thread, so that one more program fits; None where all are needed.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """Tiles of a product of ``rows`` by twice ``columns``, halves that meet; ``programs`` at most walk all tiles.

    ``group``: row tiles that go along the columns together.
    """

    rows: int
    columns: int
    depth_bytes: int
    num_warps: int
    num_stages: int
    programs: int
    group: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """The configurations of all kernels on one chip."""

    name: str
    gathers: tuple[tuple[int, Gather], ...]  # by the most rows that each serves; the last serves any number
    heads: tuple[tuple[int, Head], ...]  # likewise
    attention_64: Attention  # head dims up to 64
    attention_128: Attention
    attention_256: Attention
    hopper_attention: Attention | None  # None: this chip has not what that kernel is made of, or nobody measured it
    product: Product | None  # None: nobody measured whether one kernel beats the library's products on this chip

    def gather(self, num_rows: int) -> Gather:
        """Return the configuration for this many rows."""
        return next((gather for most, gather in self.gathers if num_rows <= most), self.gathers[-1][1])

    def head(self, num_rows: int) -> Head:
        """Return the configuration for this many rows."""
        return next((head for most, head in self.heads if num_rows <= most), self.heads[-1][1])

    def attention(self, head_dim: int) -> Attention:
        """Return the configuration for heads of this size."""
        if head_dim <= 64:
            return self.attention_64
        return self.attention_128 if head_dim <= 128 else self.attention_256


_H200 = Tuned(
    name="NVIDIA H200",
    gathers=(
        (64, Gather(block=1024, num_warps=1, overlaps=True)),
        (1024, Gather(block=4096, num_warps=4, overlaps=True)),
        (0, Gather(block=2048, num_warps=1, overlaps=False)),
    ),
    heads=(
        (16, Head(rows=16, columns=128, depth_bytes=256, num_warps=4, num_stages=5, programs=132, overlaps=True)),
        (32, Head(rows=32, columns=128, depth_bytes=256, num_warps=4, num_stages=4, programs=132, overlaps=True)),
        (64, Head(rows=64, columns=128, depth_bytes=256, num_warps=4, num_stages=4, programs=132, overlaps=True)),
        (128, Head(rows=128, columns=128, depth_bytes=128, num_warps=4, num_stages=3, programs=264, overlaps=True)),
        (512, Head(rows=128, columns=256, depth_bytes=128, num_warps=8, num_stages=4, programs=132, overlaps=True)),
        (2048, Head(rows=128, columns=128, depth_bytes=128, num_warps=4, num_stages=3, programs=264, overlaps=True)),
        (0, Head(rows=128, columns=256, depth_bytes=128, num_warps=8, num_stages=3, programs=132, overlaps=True)),
    ),
    attention_64=Attention(rows=64, keys=32, num_warps=4, num_stages=3, max_registers=80),
    attention_128=Attention(rows=64, keys=32, num_warps=4, num_stages=2, max_registers=128),
    attention_256=Attention(rows=64, keys=64, num_warps=4, num_stages=1),
    hopper_attention=Attention(rows=64, keys=32, num_warps=4, num_stages=2, max_registers=128),
    product=Product(rows=128, columns=128, depth_bytes=128, num_warps=8, num_stages=3, programs=132, group=8),
)
# For a GPU that nobody tuned for: tiles that fit any since Ampere.
_OTHER_GPU = Tuned(
    name="no chip in particular",
    gathers=((0, Gather(block=4096, num_warps=4, overlaps=False)),),
    heads=(
        (16, Head(rows=16, columns=64, depth_bytes=128, num_warps=4, num_stages=4, programs=256, overlaps=False)),
        (0, Head(rows=64, columns=64, depth_bytes=128, num_warps=4, num_stages=3, programs=256, overlaps=False)),
    ),
    attention_64=Attention(rows=64, keys=32, num_warps=4, num_stages=2),
    attention_128=Attention(rows=64, keys=32, num_warps=4, num_stages=2),
    attention_256=Attention(rows=64, keys=16, num_warps=4, num_stages=1),
    hopper_attention=None,
    product=None,
)
# Fits any GPU since Ampere, and the twice as wide numbers of float32.
_SAFE_PRODUCT = Product(rows=64, columns=64, depth_bytes=128, num_warps=4, num_stages=2, programs=256, group=8)
# Triton's interpreter runs programs one after another: few large ones are quick. Attention keeps small tiles, so that
# small tests have many of them; so do products.
_INTERPRETER = Tuned(
    name="Triton's interpreter",
    gathers=((0, Gather(block=8192, num_warps=1, overlaps=False)),),
    heads=(
        (16, Head(rows=16, columns=128, depth_bytes=256, num_warps=1, num_stages=1, programs=3, overlaps=False)),
        (0, Head(rows=64, columns=64, depth_bytes=128, num_warps=1, num_stages=1, programs=6, overlaps=False)),
    ),
    attention_64=Attention(rows=16, keys=16, num_warps=1, num_stages=1),
    attention_128=Attention(rows=16, keys=16, num_warps=1, num_stages=1),
    attention_256=Attention(rows=16, keys=16, num_warps=1, num_stages=1),
    hopper_attention=None,
    product=Product(rows=16, columns=64, depth_bytes=128, num_warps=1, num_stages=1, programs=3, group=2),
)


@cache
def tuned_for(device: torch.device) -> Tuned:
    """Return the configurations of this device's chip."""
    if device.type != "cuda":
        return _INTERPRETER
    return _H200 if torch.cuda.get_device_name(device) == _H200.name else _OTHER_GPU


def product_for(device: torch.device, element_size: int) -> Product:
    """Return the configuration of products of numbers of so many bytes: a safe one where none was measured."""
    measured = tuned_for(device).product
    return _SAFE_PRODUCT if measured is None or (device.type == "cuda" and element_size > 2) else measured
