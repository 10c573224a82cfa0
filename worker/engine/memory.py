"""Work that may need more memory than the device has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from worker.engine.protocol import EngineOutOfMemory

T = TypeVar("T")


def within_memory(work: Callable[[], T]) -> T:
    """What the work returns. Raises EngineOutOfMemory, once the tensors of the failed work are gone."""
    try:
        return work()
    except (torch.OutOfMemoryError, MemoryError) as error:
        reason = str(error)
    except RuntimeError as error:
        if "DefaultCPUAllocator" not in str(error):  # torch has no type of its own for a CPU out of memory
            raise
        reason = str(error)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise EngineOutOfMemory(reason)
