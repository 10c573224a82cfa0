"""Launch configurations by chip, found once by ``benchmarks/bench_kernels.py --tune`` and kept here: nothing is searched at boot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class Gather:
    """``block``: logits that one program reads."""

    block: int
    num_warps: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """The configurations of all kernels on one chip."""

    gather: Gather


_H200 = Tuned(gather=Gather(block=8192, num_warps=8))
# Triton's interpreter runs programs one after another: few large blocks are quick.
_INTERPRETER = Tuned(gather=Gather(block=8192, num_warps=1))

_BY_NAME = {"NVIDIA H200": _H200, "cpu": _INTERPRETER}


@cache
def tuned_for(device: torch.device) -> Tuned:
    """Return the configurations of this device's chip; a chip that nobody tuned for runs with the H200's."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return _BY_NAME.get(name, _H200)
