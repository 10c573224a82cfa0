"""Callback addresses that lead to this machine or its neighbours, the whole way: refused at submit, or recorded unsent.

A listener on every address of this machine hears every connection that is made to it, and must hear none.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from keyed import door
from name_server import NameServer
from sqlalchemy import text

from core.callback_rules import CallbackRules
from worker.deliverer import Deliverer
from worker.webhook import post

# What this machine's own resolver or connect() takes for the machine itself, and so would reach the listener.
HERE = [
    *("127.0.0.1", "127.0.0.2", "127.255.255.254", "0.0.0.0", "0", "127.1", "127.0.1", "2130706433", "017700000001"),
    *(
        "0x7f000001",
        "0x7F.0.0.1",
        "0177.0.0.1",
        "0x7f.1",
        "127.000.000.001",
        "00000177.0.0.1",
        "localhost",
        "LOCALHOST",
    ),
]
DRESSED = [
    *("127.0.0.1.", "2130706433.", "localhost.", "a.localhost", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]"),
    # IPv4 inside IPv6: mapped, compatible, translated, NAT64, 6to4, Teredo, ISATAP
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[::ffff:0:127.0.0.1]", "[64:ff9b::127.0.0.1]"),
    *("[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2002:7f00:0001::1]", "[2606:4700::5efe:127.0.0.1]"),
    "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
    # with a zone
    *("[::1%25lo]", "[::1%251]", "[fe80::1%25lo]", "[fe80::1%lo]"),
    # not ASCII: full width, circled, ideographic stops, soft hyphen, homographs
    *("\uff11\uff12\uff17.0.0.1", "\u2460\u2461\u2466.0.0.1", "127\u30020\u30020\u30021", "loc\u00adalhost", "\u24dbocalhost"),
    *("l\u043ecalhost", "\u217cocalhost", "127.0.0.\u0661"),
    # read differently by different readers
    *("example.com@127.0.0.1", "a:b@127.0.0.1", "example.com\\@127.0.0.1", "[::1]@127.0.0.1", "127.0.0.1\t", "127.0.0.1%00"),
    # neighbours: metadata, private, link-local, carriers'
    *("169.254.169.254", "0xa9fea9fe", "2852039166", "0251.0376.0251.0376", "[::ffff:169.254.169.254]", "[fd00:ec2::254]"),
    *("168.63.129.16", "100.100.100.200", "10.0.0.1", "172.16.0.1", "192.168.0.1", "[fe80::1]", "[fc00::1]", "[ff02::1]"),
]  # fmt: skip
INSIDE = {  # names, which are looked up at each delivery, and where they lead
    "inside.example": [["127.0.0.1"]],
    "any.example": [["0.0.0.0"]],
    "six.example": [["::1"]],
    "mapped.example": [["::ffff:127.0.0.1"]],
    "nat64.example": [["64:ff9b::7f00:1"]],
    "sixtofour.example": [["2002:7f00:1::1"]],
    "compatible.example": [["::127.0.0.1"]],
    "metadata.example": [["169.254.169.254"]],
    "private.example": [["10.0.0.1"]],
    "linklocal.example": [["fe80::1"]],
    "one-of-two.example": [["127.0.0.9", "127.0.0.1"]],
    "xn--lcalhost-84g.example": [["127.0.0.1"]],
}
ALLOWED = "127.0.0.9"  # as the address of a receiver out there


@contextmanager
def listening():
    """The port of a listener on every address of this machine; and who connected to it."""
    heard, stop = [], threading.Event()
    sockets = [socket.create_server(("127.0.0.1", 0))]
    port = sockets[0].getsockname()[1]
    sockets.append(socket.create_server(("127.0.0.2", port)))
    sockets.append(socket.create_server(("127.255.255.254", port)))
    with suppress(OSError):  # a machine without IPv6
        sockets.append(socket.create_server(("::1", port), family=socket.AF_INET6))

    def hear(server):
        server.settimeout(0.05)
        while not stop.is_set():
            with suppress(TimeoutError):
                connection, address = server.accept()
                heard.append(address)
                connection.close()

    threads = [threading.Thread(target=hear, args=(server,)) for server in sockets]
    for thread in threads:
        thread.start()
    try:
        yield port, heard
    finally:
        stop.set()
        for thread, server in zip(threads, sockets, strict=True):
            thread.join()
            server.close()


@pytest.fixture
def listener():
    with listening() as found:
        yield found


@pytest.fixture
def entrance(serving, api_settings, database, database_url):
    """A front end whose operator allows http, every port, and one address, so that nothing but addresses is refused."""
    allowed = {"webhook_allow_http": True, "webhook_allow_ports": "1-65535", "webhook_allow_cidrs": f"{ALLOWED}/32"}
    with door(serving, api_settings, database, database_url, **allowed) as found:
        found.rules = CallbackRules.of(api_settings.model_copy(update=allowed))
        yield found


@pytest.fixture
def deliver(entrance, database, monkeypatch):
    """Make an attempt at every delivery that there is, with this name server for names under .example."""
    asked = socket.getaddrinfo

    def deliver(names):
        def getaddrinfo(host, port, *arguments, **more):
            if not str(host).rstrip(".").endswith(".example"):
                return asked(host, port, *arguments, **more)
            return [(0, socket.SOCK_STREAM, 0, "", (address, port)) for address in names.look_up(host)]

        deliverer = Deliverer(database, "d", 5, "", entrance.rules, threading.Event())
        with database.begin() as connection:
            connection.execute(text("UPDATE deliveries SET next_attempt_at = now()"))
            ids = connection.execute(text("SELECT id FROM deliveries")).scalars().all()
        with monkeypatch.context() as patched:
            patched.setattr(socket, "getaddrinfo", getaddrinfo)
            for delivery_id in ids:
                deliverer.deliver(delivery_id)

    return deliver


def attempts(api):
    """The last attempt at each endpoint's first delivery, by its URL."""
    found = {}
    for endpoint in api.get("/v1/webhook_endpoints", params={"limit": 100}).json()["items"]:
        (delivery,) = api.get(f"/v1/webhook_endpoints/{endpoint['id']}/deliveries").json()["items"]
        found[endpoint["url"]] = api.get(f"/v1/webhook_deliveries/{delivery['id']}").json()["attempts"]
    return found


def test_the_listener_hears_whoever_takes_such_an_address_at_its_word(listener):
    port, heard = listener
    for host in HERE:
        with suppress(OSError):
            socket.create_connection((host, port), timeout=5).close()
    until = time.monotonic() + 20
    while len(heard) < len(HERE) // 2:
        assert time.monotonic() < until, heard
        time.sleep(0.02)


def test_more_than_sixty_addresses_are_refused_at_submit_and_none_is_connected_to(listener, entrance, database):
    port, heard = listener
    hosts = [*HERE, *DRESSED]
    assert len(set(hosts)) >= 60
    api = entrance.client()
    for host in hosts:
        for scheme in ("http", "https"):
            url = f"{scheme}://{host}:{port}/hook"
            answer = api.post("/v1/jobs", json={"items": ["a"], "webhook_url": url})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_webhook_url"), url
            assert answer.json()["field"] == "webhook_url"
            assert len(answer.json()["detail"]) > 20, "says why"
            outcome = post(url, b"{}", {}, timeout_seconds=5, rules=entrance.rules)  # as if it had been taken once
            assert (outcome.status, outcome.error[:10]) == (None, "not sent: "), url
    with database.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM jobs")).scalar_one() == 0
    assert heard == []


def test_names_that_lead_inside_are_not_connected_to_and_the_reason_is_recorded(listener, entrance, deliver):
    port, heard = listener
    api = entrance.client()
    urls = [f"http://{name}:{port}/hook" for name in INSIDE] + [f"http://inside.example.:{port}/dot"]
    for url in urls:
        job = api.post("/v1/jobs", json={"items": ["a"], "webhook_url": url})
        assert job.status_code == 202, job.text
        api.post(job.json()["links"]["cancel"])
    with NameServer(INSIDE).serving() as names:
        deliver(names)
        assert sorted(names.asked) == sorted([*INSIDE, "inside.example"])
    found = attempts(api)
    assert found.keys() == set(urls)
    for url, (attempt,) in found.items():
        assert attempt["status"] is None, url
        assert attempt["error"].startswith("not sent: the address leads to "), (url, attempt["error"])
    assert heard == []


def test_a_name_that_is_bound_anew_and_a_redirect_lead_nowhere(listener, entrance, deliver):
    port, heard = listener
    got = []

    class Redirecting(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(self.headers["host"])
            self.send_response(307)
            self.send_header("location", f"http://127.0.0.1:{port}/hook")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    api = entrance.client()
    with ThreadingHTTPServer((ALLOWED, port), Redirecting) as out_there:
        thread = threading.Thread(target=out_there.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"http://rebound.example:{port}/hook"
            api.post(api.post("/v1/jobs", json={"items": ["a"], "webhook_url": url}).json()["links"]["cancel"])
            with NameServer({"rebound.example": [[ALLOWED], ["127.0.0.1"]]}).serving() as names:
                deliver(names)
                deliver(names)
                assert len(names.asked) == 2, "once an attempt"
        finally:
            out_there.shutdown()
            thread.join()
    first, second = attempts(api)[url]
    assert (first["status"], got) == (307, [f"rebound.example:{port}"])
    assert second["error"] == "not sent: the address leads to 127.0.0.1 (loopback), where nothing is sent"
    assert heard == []
