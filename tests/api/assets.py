"""Files that tests and benchmarks share, kept beside the repository: where they are missing, a laptop skips and CI fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ASSETS = Path(__file__).parents[2].parent / "shared" / "assets"


def asset(name):
    """The path of a file or folder that is there."""
    path = ASSETS / name
    if not path.exists():
        assert not os.environ.get("CI"), f"{path} is missing"
        pytest.skip(f"{path} is missing")
    return path
