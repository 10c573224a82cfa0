"""``docs/faults.md`` says what the table says."""

from __future__ import annotations

from pathlib import Path

import every_scenario
from scenarios import page

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


def test_the_page_is_the_table():
    assert every_scenario.SCENARIOS
    assert PAGE.read_text() == page(), "run: .venv/bin/python tests/faults/write_page.py"
