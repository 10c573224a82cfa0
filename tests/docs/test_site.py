"""The documentation as a site: every page is on the way, every link leads somewhere, and no page asks another server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:script|img|link)[^>]*(?:src|href)=\"?(https?://[^\" >]+)")
PAGES = sorted(path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [Path(sys.executable).with_name("mkdocs"), "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_is_on_the_way_and_loads_nothing_from_elsewhere(site, page):
    html = (site / page.with_suffix(".html")).read_text()
    assert not LOADED.findall(html)
    name = page.with_suffix(".html").name
    assert f'{name}" class="md-nav__link' in (site / "index.html").read_text() or page.name == "index.md"
