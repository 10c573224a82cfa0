"""Problem codes: every one that the code can answer with is in docs/api.md, and none that it can't."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [
    *(ROOT / "api").glob("*.py"),
    *(ROOT / "api" / "ingest").glob("*.py"),
    *(ROOT / "api" / "result_formats").glob("*.py"),
    *(ROOT / "core").glob("*.py"),
    *(set((ROOT / "store").glob("*.py")) - {ROOT / "store" / "client_removal.py"}),  # only commands remove clients
]
CODE = re.compile(r"[a-z]+(_[a-z]+)+")


def codes_of(path):
    """Codes in calls of ``Refused`` and of what answers, in what ``faults`` explains, and in the tables of ``problems``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            at = {"Refused": 0, "respond": 1, "_respond": 2, "_refuse": 1}.get(name)
            argument = node.args[at] if at is not None and len(node.args) > at else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value
        if path.name == "faults.py" and isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            yield node.value.elts[0].value
        if (
            path.name == "problems.py"
            and isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") == "get"
            and isinstance(node.func.value, ast.Dict)
        ):
            yield node.args[1].value
            yield from (value.value for value in node.func.value.values)


def test_every_code_is_documented_and_every_documented_code_exists():
    used = {code for path in SOURCES for code in codes_of(path)}
    rows = re.findall(r"^\| \d{3} \| `(\w+)` \|", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)

    assert len(used) > 35
    assert all(CODE.fullmatch(code) for code in used)
    assert len(rows) == len(set(rows))
    assert set(rows) == used
