"""What may not happen on any page: text that runs, a fault that axe calls serious, a style that is broken in the dark."""

from __future__ import annotations

import json

import pytest
from assets import asset
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

ATTACKS = (
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "<svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "{{ 7 * 7 }}{% raw %}",
    "</pre></textarea></title><script>window.hacked = 1</script>",
    "data: x\n\nevent: swap\ndata: <b id=progress>gone</b>",
    "\u202eright to left\u2028line",
)
SERIOUS = ("serious", "critical")
CHECKED = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}  # the rest is the same in the dark


@pytest.fixture(scope="module")
def hostile_texts():
    """The big list of naughty strings, without those that are nothing."""
    return [text for text in json.loads(asset("hostile/blns.json").read_bytes()) if text.strip()]


def storable(text):
    return text.replace("\0", "")[:500]


def test_hostile_texts_ids_and_metadata_are_shown_and_never_run(page, site, hostile_texts):
    texts = [*ATTACKS, *map(storable, hostile_texts)]
    items = [{"id": f"{number} {text}"[:500], "text": text} for number, text in enumerate(texts)]
    job_id = site.submit(items, query=ATTACKS[0], metadata={"name": ATTACKS[1], ATTACKS[2][:60]: ATTACKS[3]})
    site.score(job_id, failing=set(range(len(texts))))
    for path in ("/", f"/jobs/{job_id}", f"/jobs/{job_id}/results", f"/jobs/{job_id}/results?status=failed"):
        page.goto(path)
        assert page.evaluate("window.hacked") is None
    for number in (*range(len(ATTACKS)), *range(len(ATTACKS), len(texts), 120)):
        page.goto(f"/jobs/{job_id}/items/{number}")
        assert page.locator("#text").evaluate("each => each.textContent") == texts[number].replace("\r\n", "\n")
        assert page.evaluate("window.hacked") is None


def test_what_is_typed_into_the_form_comes_back_as_text(page, site, complaints):
    complaints.expected.append("status of 422")
    page.goto("/try")
    for attack in ATTACKS[:3]:
        page.get_by_role("textbox", name="Query").fill(attack)
        page.get_by_label("Items, one a line").fill(attack)
        page.get_by_label("Labels").fill(attack)
        page.get_by_role("button", name="Score").click()
        expect(page.get_by_role("alert")).to_be_visible()
        expect(page.get_by_label("Items, one a line")).to_have_value(attack)
        assert page.evaluate("window.hacked") is None


def test_a_hostile_text_that_arrives_live_stays_a_text(page, site):
    page.goto("/")
    page.evaluate("window.isStillTheSame = true")
    site.submit(metadata={"name": ATTACKS[1]})
    expect(page.get_by_text(ATTACKS[1])).to_be_visible()
    assert page.evaluate("[window.hacked ?? null, window.isStillTheSame]") == [None, True]


@pytest.fixture
def every_page(site):
    """A ledger with something on every page; their addresses."""
    job_id = site.submit([f"item {n}" for n in range(60)], webhook_url="https://receiver.example/hook")
    site.score(job_id, failing={1})
    running = site.submit([f"item {n}" for n in range(2_000)])
    site.score(running, chunk_nos=[0])
    site.sql("INSERT INTO workers (owner, host, pid, model, threads, state) VALUES ('o', 'h', 1, 'fake', 1, 'ready')")
    (endpoint,) = site.sql("SELECT id FROM webhook_endpoints")
    (delivery,) = site.sql("SELECT id FROM deliveries")
    return [
        *("/", f"/try/{job_id}", "/workers", "/webhooks", "/sign-in"),
        *(f"/webhooks/{endpoint}", f"/deliveries/{delivery}", f"/jobs/{job_id}", f"/jobs/{running}"),
        *(f"/jobs/{job_id}/results", f"/jobs/{job_id}/items/1"),
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault_and_no_page_is_wider_than_a_phone(scheme, open_page, complaints, every_page):
    axe, faults = Axe(), []
    page = open_page(color_scheme=scheme, viewport={"width": 390, "height": 800}, bypass_csp=True)  # axe is a script
    for path in every_page:
        page.goto(path)
        found = axe.run(page, options=CHECKED[scheme]).response["violations"]
        faults += [
            (path, each["id"], node["html"]) for each in found if each["impact"] in SERIOUS for node in each["nodes"]
        ]
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, f"{path} scrolls sideways"
    assert not faults
    assert not complaints.unexpected()
