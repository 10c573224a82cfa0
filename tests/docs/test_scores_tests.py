"""docs/scores-tests.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [line for line in (ROOT / "docs/scores-tests.md").read_text().splitlines() if line.startswith("| ")][1:]
NAMED = [re.search(r"\| `(tests/[\w/]+\.py)` `(test_\w+)` \|$", row) for row in ROWS]


@pytest.mark.parametrize("named", NAMED, ids=lambda named: named[2] if named else "no test")
def test_every_complaint_has_a_test_that_exists(named):
    assert named, "a row of the page names no test"
    assert re.search(rf"^def {named[2]}\(", (ROOT / named[1]).read_text(), re.MULTILINE)


def test_the_page_has_a_row_for_each_complaint():
    assert len(ROWS) > 20
    assert len({row.split("|")[1] for row in ROWS}) == len(ROWS)
