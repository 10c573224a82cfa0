"""The pictures of the dashboard in the documents: a real model on this machine, real jobs, light and dark.

python benchmarks/dashboard_pictures.py --folder docs/figures
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from chromium import chromium

from rankmill import Client
from rankmill.background import running_up
from rankmill.demo import ITEM, QUERY, TOPICS, documentation, model_file

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
VIEW = {"width": 1200, "height": 780}
MAX_BYTES = 150_000
MAX_CHARACTERS = 120
NUM_TEXTS = 60
TOO_LONG = "long " * 9_000
HOOK = "https://receiver.example/rankmill"


def texts():
    """A sentence or two of each module's documentation."""
    return [ITEM.format(doc=doc[:MAX_CHARACTERS]) for doc in documentation().values()][:NUM_TEXTS]


def fill(client):
    """Jobs that ended in several ways; the id of the one to look at."""
    topics = {"query": QUERY, "item_first": True, "labels": [f" {topic}" for topic in TOPICS]}
    client.wait(client.submit(items=texts()[:20], **topics, metadata={"name": "topics"}, webhook_url=HOOK).id)
    mixed = client.submit(
        items=[*texts(), TOO_LONG],
        query=QUERY,
        item_first=True,
        labels=[" math", " network"],
        truncation="error",
        metadata={"name": "math or network"},
    )
    client.wait(mixed.id)
    client.cancel(client.submit(items=texts() * 20, **topics, metadata={"name": "by mistake"}).id)
    return mixed.id


def tried(page):
    """Fill in the form, and wait for its answer."""
    page.goto("/try")
    page.get_by_role("textbox", name="Query").fill("\n\nIn one word, the topic of this text is")
    page.get_by_label("Items, one a line").fill(
        "Simmer the lentils with cumin for twenty minutes.\n"
        "The midfielder scored twice after the break.\n"
        "The quartet recorded its second album in a church."
    )
    page.get_by_label("Labels").fill(" food, sport, music")
    page.get_by_label("Item before query").check()
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
        with running_up(data / "up", model=str(model_file())) as (url, _), Client(url) as client:
            mixed = fill(client)
            page = browser.new_page(base_url=url)
            page.set_default_timeout(120_000)
            answer = tried(page)
            client.submit(items=texts() * 40, query=QUERY, item_first=True, labels=[" math", " web"])
            paths = {
                "jobs": "/",
                "job": f"/jobs/{mixed}",
                "results": f"/jobs/{mixed}/results?order=score",
                "try": answer,
                "workers": "/workers",
            }
            page.wait_for_timeout(60_000)  # for the rate and the batches of the job that runs
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
