"""The machine's own Chromium, headless."""

from __future__ import annotations

import shutil
import sys
from contextlib import contextmanager

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium():
    """A browser, for the length of a block."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        sys.exit("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
