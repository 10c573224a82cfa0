"""What ``docs/dialects.md`` says of each dialect, field by field, and how its answers are read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "dialects.md"
EFFECTS = ("scores", "answer", "length", "nothing")
_SECTION = re.compile(r"^### (?P<title>.+?)\n(?P<text>.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_VALUE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """One field of a dialect: values that are honoured and refused, and what the first change."""

    field: str
    honoured: list
    refused: list
    effect: str | None


@dataclass(frozen=True)
class Table:
    """One dialect: where its bodies go, one of them, and its fields."""

    title: str
    path: str
    body: dict
    rows: list


def tables():
    """Every dialect of the page, by title."""
    return {
        match["title"]: _table(match["title"], match["text"])
        for match in _SECTION.finditer(PAGE.read_text())
        if "| field |" in match["text"]
    }


def _table(title, text):
    body = json.loads(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])
    lines = [
        line.strip("| ").split(" | ") if " | | " not in line else _cells(line)
        for line in text.splitlines()
        if line.startswith("| `")
    ]
    return Table(title, re.search(r"`POST (/\S+)`", text)[1], body, [_row(*cells) for cells in lines])


def _cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _row(field, honoured, refused, why):
    effect = re.match(r"\*\*(\w+)\*\*", why)
    assert effect is None or effect[1] in EFFECTS
    return Row(field.strip("`"), _values(honoured), _values(refused), effect and effect[1])


def _values(cell):
    return [json.loads(value) for value in _VALUE.findall(cell)]


def scores(title, answer):
    """The scores of an answer by the index of the item, whatever the dialect calls them."""
    if title == "SGLang score":
        return dict(enumerate(answer["scores"]))
    if title == "TEI similarity":
        return dict(enumerate(answer))
    found = answer if isinstance(answer, list) else answer.get("results") or answer.get("data") or answer["rankings"]
    return {each["index"]: each.get("score", each.get("relevance_score", each.get("logit"))) for each in found}


def without_names(answer):
    """An answer without what differs each time: ids and times."""
    if isinstance(answer, dict):
        return {
            name: without_names(inner)
            for name, inner in answer.items()
            if name not in ("id", "created", "cached_tokens")
        }
    if isinstance(answer, list):
        return [without_names(each) for each in answer]
    return answer
