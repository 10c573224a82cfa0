"""Where an engine runs."""

from __future__ import annotations

import torch

from worker.engine.options import EngineOptions
from worker.engine.protocol import EngineRefused


def device_of(options: EngineOptions) -> torch.device:
    """The device that the options ask for; ``auto``: CUDA where torch sees a GPU.

    An engine's process sees one GPU (``gpu``), so that no place has to say which.
    """
    assert ":" not in options.device, "the process was to see that GPU alone"
    if options.device == "cuda" and not torch.cuda.is_available():
        raise EngineRefused("RANKMILL_DEVICE is cuda, but torch sees no CUDA device")
    if options.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(options.device)
