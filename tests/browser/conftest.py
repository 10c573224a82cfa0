"""Headless Chromium before a real front end: a fresh ledger a test, and a page on which nothing may go wrong."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

import pytest

sys.path.append(str(Path(__file__).parents[1] / "api"))  # where the fake scoring and the cards are

import httpx
from api_limits import PREFIX
from cards import FAKE_CARD
from fake_scoring import score_chunk
from front_ends import serve
from in_process_worker import working

from core.chunks import ChunkKey
from core.settings import Settings
from store import model_cards
from store.tokenizer import tokenizer_for

PATIENCE_MS = 30_000  # a machine may be five times slower and busy
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser():
    """One for all tests of a file: while it is there its event loop runs, and other files have loops of their own."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium on this machine, and CI must not skip these tests")
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Site:
    """A front end over a ledger of its own, and what happens behind it."""

    def __init__(self, url, database, redis_url):
        self.url, self.database, self.redis_url = url, database, redis_url

    def submit(self, items=("a", "b"), **fields):
        """A job over the API; its id."""
        answer = httpx.post(f"{self.url}/v1/jobs", json={"items": list(items), **fields}, trust_env=False, timeout=20)
        assert answer.status_code == 202, answer.text
        return answer.json()["id"]

    def score(self, job_id, *, chunk_nos=None, failing=()):
        """Score chunks of a job: all of them, or those with these numbers."""
        if chunk_nos is None:
            chunk_nos = self.sql("SELECT chunk_no FROM chunks WHERE job_id = %s ORDER BY 1", job_id)
        for number in chunk_nos:
            score_chunk(self.database, ChunkKey(UUID(job_id), number), failing=failing)

    def sql(self, statement, *values):
        """Run it; the first column of what it finds."""
        with self.database.begin() as connection:
            found = connection.exec_driver_sql(statement, values)
            return list(found.scalars()) if found.returns_rows else []

    @contextmanager
    def worker(self):
        """A worker in this process, while the block lasts."""
        with working(self.database, self.redis_url, FAKE_CARD, tokenizer_for(FAKE_CARD, None)):
            yield


@pytest.fixture
def site(database, database_url, redis_url):
    """A front end on loopback, with the fake model's card and no keys."""
    with database.begin() as connection:
        model_cards.publish(connection, FAKE_CARD, None)
    settings = Settings(
        database_url=database_url, redis_url=redis_url, redis_prefix=PREFIX, api_port=0, requests_per_minute=0
    )
    with serve(settings) as url:
        yield Site(url, database, redis_url)


class Complaints:
    """What the browser complained of. ``expected`` are parts of what may be."""

    def __init__(self):
        self.seen, self.expected = [], []

    def watch(self, page):
        """Listen to this page."""
        page.on("console", lambda message: message.type == "error" and self.seen.append(message.text))
        page.on("pageerror", lambda error: self.seen.append(f"script: {error}"))
        page.on("dialog", lambda dialog: (self.seen.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def unexpected(self):
        """Those that no test foresaw."""
        return [text for text in self.seen if not any(part in text for part in self.expected)]


@pytest.fixture
def complaints():
    """What the browser complains of during the test."""
    return Complaints()


@pytest.fixture
def open_page(browser, site, complaints):
    """Open pages, each in a browser profile of its own."""
    with ExitStack() as stack:

        def open_page(**options):
            context = browser.new_context(base_url=site.url, **options)
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()
            complaints.watch(page)
            return page

        yield open_page


@pytest.fixture
def page(open_page, complaints):
    """A page. After the test, the browser must not have complained."""
    yield open_page()
    assert not complaints.unexpected()
