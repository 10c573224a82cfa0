"""Keys in the browser: signing in and out, what stands in the cookie, and what no foreign page can make a browser do."""

from __future__ import annotations

import re
import time
from http.cookies import SimpleCookie
from uuid import UUID

import httpx
import pytest
from keyed import add_key
from playwright.sync_api import expect

from api.pages import sessions
from api.pages.routes import PARTS
from core.keys import fingerprint, new_key
from store import api_keys


@pytest.fixture
def key(site):
    """A key of the client `one`."""
    return add_key(site.database, "one")[0]


@pytest.fixture
def http(site):
    """An HTTP client that follows nothing, with the cookies of a browser that has seen a form."""
    with httpx.Client(base_url=site.url, trust_env=False, timeout=20) as client:
        yield client


def token_in(answer):
    return re.search(r'name="token" value="([0-9a-f]{64})"', answer.text)[1]


def signed_in(http, key):
    """Sign in as a browser does."""
    form = {"token": token_in(http.get("/sign-in")), "key": key, "next": "/try"}
    return http.post("/sign-in", data=form, headers=own(http))


def own(http):
    return {"Origin": str(http.base_url).rstrip("/")}


def test_a_key_opens_the_pages_that_were_asked_for_and_signing_out_closes_them(page, site, key, complaints):
    complaints.expected.append("status of 401")
    page.goto("/webhooks")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("Key").fill(new_key())
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")
    page.get_by_label("Key").fill(key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Webhooks")).to_be_visible()
    expect(page.get_by_text(f"one (…{key[-4:]})")).to_be_visible()
    (session,) = [cookie for cookie in page.context.cookies() if cookie["name"] == "rankmill_session"]
    assert (session["httpOnly"], session["sameSite"]) == (True, "Strict")
    assert key not in session["value"]
    assert key[3:] not in page.content()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto("/webhooks")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_one_clients_pages_show_nothing_of_anothers(http, site, key):
    other = add_key(site.database, "two")[0]
    headers = {"Authorization": f"Bearer {other}"}
    hook = "https://receiver.example/hook"
    job_id = http.post("/v1/jobs", json={"items": ["a"], "webhook_url": hook}, headers=headers).json()["id"]
    site.score(job_id)
    (endpoint,), (delivery,) = site.sql("SELECT id FROM webhook_endpoints"), site.sql("SELECT id FROM deliveries")
    assert signed_in(http, key).status_code == 303
    assert "No jobs yet" in http.get("/").text
    form = {"token": token_in(http.get("/try"))}
    jobs = [f"/jobs/{job_id}{rest}" for rest in ("", "/results", "/items/0", "/download/csv")]
    for path in (*jobs, f"/live/jobs/{job_id}", f"/try/{job_id}", f"/webhooks/{endpoint}", f"/deliveries/{delivery}"):
        assert http.get(path).status_code == 404, path
    for path in (
        *(f"/jobs/{job_id}/cancel", f"/jobs/{job_id}/retry"),
        *(f"/webhooks/{endpoint}/test", f"/webhooks/{endpoint}/enable", f"/deliveries/{delivery}/redeliver"),
    ):
        assert http.post(path, data=form, headers=own(http)).status_code == 404, path


def test_only_an_administrator_sees_the_workers(http, site, key):
    signed_in(http, key)
    assert http.get("/workers").status_code == 403
    assert "/workers" not in http.get("/").text
    http.cookies.clear()
    signed_in(http, add_key(site.database, "one", is_admin=True)[0])
    assert http.get("/workers").status_code == 200


def test_a_session_ends_with_its_key(http, site):
    key, key_id = add_key(site.database, "one")
    signed_in(http, key)
    assert http.get("/").status_code == 200
    with site.database.begin() as connection:
        api_keys.revoke(connection, key_id)
    assert http.get("/").headers["location"] == "/sign-in"


@pytest.mark.parametrize("what", ["jobs", "jobs/{job_id}"])
def test_a_page_that_is_open_hears_no_more_once_its_key_is_revoked(what, http, site):
    key, key_id = add_key(site.database, "one")
    headers = {"Authorization": f"Bearer {key}"}
    job_id = http.post("/v1/jobs", json={"items": ["a"]}, headers=headers).json()["id"]
    signed_in(http, key)
    with http.stream("GET", "/live/" + what.format(job_id=job_id)) as answer:
        lines = answer.iter_lines()
        while not next(lines).startswith("event: swap"):
            pass
        with site.database.begin() as connection:
            api_keys.revoke(connection, key_id)
        assert not [line for line in lines if line.startswith("event: end")]  # it ends, and is not over


def test_a_session_is_good_for_its_key_and_its_time_alone():
    sha256, other = fingerprint(new_key()).sha256, fingerprint(new_key()).sha256
    now, key_id = time.time(), UUID(int=7)
    session = sessions.read(sessions.start(key_id, sha256, now))
    assert session.key_id == key_id
    assert session.is_signed(sha256, now + sessions.SECONDS - 1)
    assert not session.is_signed(sha256, now + sessions.SECONDS + 1)
    assert not session.is_signed(other, now)


def test_what_is_no_session_opens_nothing(http, key):
    for text in ("x", "=", "AA" * 40, "A" * 76, "A" * 3_000):
        http.cookies.set("rankmill_session", text)
        assert http.get("/").status_code == 303, text
    assert sessions.read("") is None
    assert sessions.read("é") is None


def test_no_bit_of_a_session_can_be_changed(http, site, key):
    signed_in(http, key)
    good = http.cookies["rankmill_session"]
    for place in range(0, len(good), 7):
        changed = good[:place] + ("A" if good[place] != "A" else "B") + good[place + 1 :]
        answer = httpx.get(f"{site.url}/", headers={"Cookie": f"rankmill_session={changed}"}, trust_env=False)
        assert answer.status_code == 303, place


def test_a_form_that_none_of_our_pages_posted_changes_nothing(http, site):
    job_id = site.submit()
    token = token_in(http.get(f"/jobs/{job_id}"))

    def post(headers, form, **changes):
        answer = http.post(f"/jobs/{job_id}/cancel", data=form, headers=headers, **changes)
        return answer.status_code, "foreign_form" in answer.text

    for origin in ("https://evil.example", "null", ""):
        assert post({"Origin": origin}, {"token": token}) == (403, True), origin
    assert post({}, {"token": token}) == (403, True)
    for wrong in ("", "0" * 64, token[:-1]):
        assert post(own(http), {"token": wrong, "x": "y"}) == (403, True), wrong
    cookie = http.cookies["rankmill_form"]
    http.cookies.clear()
    assert post(own(http), {"token": token}) == (403, True)
    http.cookies.set("rankmill_session", "another session")
    http.cookies.set("rankmill_form", cookie)
    assert post(own(http), {"token": token}) == (403, True)
    assert site.sql("SELECT state FROM jobs") == ["queued"]
    http.cookies.delete("rankmill_session")
    assert post(own(http), {"token": token}) == (303, False)


def test_every_form_is_guarded(http):
    posts = [route for part in PARTS for route in part.routes.routes if "POST" in route.methods]
    assert len(posts) >= 8
    for route in posts:
        path = route.path.replace("{", "").replace("}", "")
        assert http.post(path, data={"key": "x"}, headers=own(http)).status_code == 403, route.path


def test_every_page_says_what_it_may_load_and_is_not_kept(http, site):
    for path in ("/", "/try", "/sign-in", "/jobs/none", "/live/jobs/none"):
        headers = http.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"


def test_cookies_are_strict_and_secure_where_the_browser_came_over_tls(http, site, key):
    for origin, is_secure in ((site.url, False), (site.url.replace("http:", "https:"), True)):
        form = {"token": token_in(http.get("/sign-in")), "key": key}
        answer = http.post("/sign-in", data=form, headers={"Origin": origin})
        cookie = SimpleCookie(answer.headers["set-cookie"])["rankmill_session"]
        assert (cookie["httponly"], cookie["samesite"].lower(), bool(cookie["secure"])) == (True, "strict", is_secure)


def test_signing_in_leads_nowhere_else(http, key):
    for address in ("https://evil.example/", "//evil.example", "/\\evil.example", "/\t/x", "x", ""):
        http.cookies.clear()
        form = {"token": token_in(http.get("/sign-in")), "key": key, "next": address}
        assert http.post("/sign-in", data=form, headers=own(http)).headers["location"] == "/", address


def test_without_keys_only_a_loopback_name_is_answered(http):
    answer = http.get("/", headers={"Host": "evil.example:8000"})
    assert answer.status_code == 403
    assert "loopback" in answer.text
    assert http.get("/", headers={"Host": "localhost:8000"}).status_code == 200
