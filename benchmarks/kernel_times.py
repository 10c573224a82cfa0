"""How long one kernel takes on the GPU, alone on a cold cache or under lasting load, and what the chip could reach."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

NUM_RUNS = 25
LASTING_SECONDS = 2.0
DEVICE = torch.device("cuda")


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table; times in milliseconds."""

    what: str
    ours: float
    torch: float
    floor: float
    error: float  # largest difference from float32
    torch_error: float
    lasting: float | None = None  # milliseconds of one run among many without a pause, where a chip may slow down
    torch_lasting: float | None = None


def device_ms(run: Callable[[], object], flush: torch.Tensor) -> float:
    """Return the median device time of one run on a cold cache."""
    for _ in range(3):
        run()
    times = []
    for _ in range(NUM_RUNS):
        for _ in range(
            4
        ):  # a millisecond, longer than the launches below take, so that the GPU never waits for the host
            flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def lasting_ms(run: Callable[[], object]) -> float:
    """Return the time of one run when they follow each other for seconds; the first half warms the chip and counts not."""
    run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    half, num_runs = None, 0
    while (now := time.perf_counter()) - begin < LASTING_SECONDS:
        if half is None and now - begin > LASTING_SECONDS / 2:
            half, num_runs = now, 0
        for _ in range(10):
            run()
        num_runs += 10
        torch.cuda.synchronize()
    assert half is not None
    return 1000 * (time.perf_counter() - half) / num_runs


def ceilings(flush: torch.Tensor) -> tuple[float, float]:
    """Return bytes and bfloat16 operations a millisecond, as a large copy and a large product reach them."""
    source = torch.randn(2**29, device=DEVICE)
    target = torch.empty_like(source)
    copied = 2 * source.numel() * source.element_size() / device_ms(lambda: target.copy_(source), flush)
    left, right = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return copied, 2 * 8192**3 / device_ms(lambda: left @ right, flush)
