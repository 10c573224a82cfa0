"""The pictures of the dashboard in the documents: a whole stack with the fake model, real jobs, light and dark.

python benchmarks/dashboard_pictures.py --folder docs/figures
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from chromium import chromium

from rankmill import Client
from rankmill.background import running_up

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
VIEW = {"width": 1200, "height": 720}
MAX_BYTES = 150_000
WORDS = (
    "Keep it in a cloth.",
    "Freeze it in slices.",
    "Trains leave at noon.",
    "Never in the fridge.",
    "A paper bag will do.",
)
HOOK = "https://receiver.example/rankmill"


def texts(number):
    """So many lines."""
    return [f"line {place} of {number}: {WORDS[place % len(WORDS)]}" for place in range(number)]


def fill(client):
    """Jobs that ended in several ways; the id of the one to look at."""
    client.wait(client.submit(items=texts(200), query="q ", metadata={"name": "nightly"}, webhook_url=HOOK).id)
    mixed = client.submit(items=texts(30_000), query="q ", metadata={"name": "catalogue"})
    client.wait(mixed.id)
    client.cancel(client.submit(items=texts(50_000), query="q ", metadata={"name": "by mistake"}).id)
    return mixed.id


def tried(page):
    """Fill in the form, and wait for its answer."""
    page.goto("/try")
    page.get_by_role("textbox", name="Query").fill("how do I keep bread fresh? ")
    page.get_by_label("Items, one a line").fill("\n".join(WORDS))
    page.get_by_role("button", name="Score").click()
    page.locator(".ranking li").first.wait_for()
    return page.url


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory(prefix="rankmill-pictures-") as name, chromium() as browser:
        data = Path(name)
        data.chmod(0o755)
        with running_up(data / "up", model="fake") as (url, _), Client(url) as client:
            mixed = fill(client)
            page = browser.new_page(base_url=url)
            page.set_default_timeout(120_000)
            answer = tried(page)
            client.submit(items=texts(1_500_000), query="q ", metadata={"name": "archive"})
            paths = {
                "jobs": "/",
                "job": f"/jobs/{mixed}",
                "results": f"/jobs/{mixed}/results?order=score",
                "try": answer,
                "workers": "/workers",
            }
            page.wait_for_timeout(3_000)  # for the rate and the batches of the job that runs
            for scheme in ("light", "dark"):
                shot = browser.new_context(base_url=url, color_scheme=scheme, viewport=VIEW)
                for what, path in paths.items():
                    take(shot, path, folder / f"dashboard-{what}-{scheme}.png")
                shot.close()


def take(context, path, target):
    page = context.new_page()
    page.goto(path, wait_until="load")
    page.screenshot(path=str(target))
    size = target.stat().st_size
    print(f"{target.name}: {size:,} bytes")
    assert size < MAX_BYTES
    page.close()


if __name__ == "__main__":
    main()
