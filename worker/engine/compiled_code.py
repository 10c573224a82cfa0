"""Where torch and Triton keep the code that they compile, so that the next start finds it."""

from __future__ import annotations

import os
from pathlib import Path


def keep_compiled_code() -> None:
    """Name a folder that outlasts a reboot, unless their own variables name one. To be called before torch is imported."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankmill"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache / "triton"))
