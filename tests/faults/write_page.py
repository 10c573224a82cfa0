"""Writes ``docs/faults.md`` from the table of scenarios: run it after the table has changed."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import every_scenario  # noqa: F401, E402 - it fills the table
from scenarios import page  # noqa: E402

(ROOT / "docs" / "faults.md").write_text(page())
