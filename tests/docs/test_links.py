"""Relative links in the repository's Markdown lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HIDDEN = re.compile(r"(^|/)(\.|build/|dist/|node_modules/)")
PAGES = [path for path in sorted(ROOT.rglob("*.md")) if not HIDDEN.search(path.relative_to(ROOT).as_posix())]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:")


def links(page: Path) -> list[str]:
    prose = FENCE.sub("", page.read_text())
    return [match["target"] for match in LINK.finditer(prose) if not ELSEWHERE.match(match["target"])]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_resolves(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert target.is_relative_to(ROOT), f"{link} leaves the repository"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_every_decision_is_numbered_in_order_and_opens_with_its_number() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    assert [page.read_text().split(" ")[1] for page in pages] == [f"{int(page.name[:4])}." for page in pages]
