"""What is dialled is what was checked: names that lead inside, that change, and that lead to several places."""

from __future__ import annotations

import ssl
import subprocess
import threading
from dataclasses import replace
from ipaddress import ip_network
from urllib.parse import urlsplit

import pytest
from receiver import LOCAL, Receiver

from core.callback_rules import PUBLIC
from worker import webhook
from worker.webhook import post

ONE_ADDRESS = replace(LOCAL, allowed_networks=(ip_network("127.0.0.1/32"),))


class Resolver:
    """Answers with these lists of addresses in turn, and again with the last."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def __call__(self, host, _port):
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def send(url, resolver, rules=ONE_ADDRESS):
    return post(url, b"{}", {}, timeout_seconds=5, rules=rules, resolve=resolver)


def named(url, name="receiver.example"):
    return urlsplit(url)._replace(netloc=f"{name}:{urlsplit(url).port}").geturl()


def test_a_name_that_is_bound_anew_leads_to_the_checked_address_and_then_nowhere():
    checked, inside = Receiver(), Receiver()
    resolver = Resolver(["127.0.0.1"], ["127.0.0.2"])
    with checked.serving() as url, inside.serving(("127.0.0.2", urlsplit(url).port)):
        first = send(named(url), resolver)
        assert resolver.asked == ["receiver.example"]  # once: nothing looks the name up again
        second = send(named(url), resolver)
    assert (first.status, first.error) == (200, None)
    assert [headers["host"] for headers, _ in checked.got] == [urlsplit(named(url)).netloc]
    assert inside.got == []
    assert second.status is None
    assert second.error == "not sent: the address leads to 127.0.0.2 (loopback), where nothing is sent"


@pytest.mark.parametrize("inside", ["127.0.0.2", "::ffff:127.0.0.2", "10.0.0.1", "fe80::1%lo", "64:ff9b::7f00:1"])
def test_a_name_with_one_address_inside_is_not_sent_to_at_all(inside):
    receiver = Receiver()
    with receiver.serving() as url:
        outcome = send(named(url), Resolver(["127.0.0.1", inside]))
    assert receiver.got == []
    assert outcome.error.startswith("not sent: ")


@pytest.mark.parametrize("addresses", [["127.0.0.9", "127.0.0.1"], ["127.0.0.1", "127.0.0.9"]], ids=str)
def test_the_next_address_is_dialled_where_one_does_not_answer(addresses):
    receiver = Receiver()
    with receiver.serving() as url:
        outcome = send(named(url), Resolver(addresses), LOCAL)
    assert outcome.status == 200


def test_a_name_without_an_address_and_a_name_that_is_not_found_are_outcomes():
    async def not_found(host, port):
        raise OSError("Name or service not known")

    assert "no address" in send("http://receiver.example/", Resolver([])).error
    assert "not known" in send("http://receiver.example/", not_found).error


def test_without_the_operators_leave_nothing_is_looked_up_or_connected_to():
    receiver, resolver = Receiver(), Resolver(["127.0.0.1"])
    with receiver.serving() as url:
        for refused in (url, named(url), url.replace("http", "https"), named(url).replace("http", "https")):
            assert send(refused, resolver, PUBLIC).error.startswith("not sent: ")
        assert "(loopback)" in send("https://receiver.example/", resolver, PUBLIC).error
        assert "in the clear" in send(named(url), resolver, replace(LOCAL, allows_http=False)).error
    assert receiver.got == []
    assert resolver.asked == ["receiver.example"]


def test_the_machines_own_resolver_is_checked_too():
    receiver = Receiver()
    with receiver.serving() as url:
        rules = replace(LOCAL, allowed_networks=(ip_network("10.0.0.0/8"),))
        outcome = post(named(url, "localhost"), b"{}", {}, timeout_seconds=5, rules=rules)
        assert "(loopback)" in outcome.error
        assert post(named(url, "localhost"), b"{}", {}, timeout_seconds=5, rules=LOCAL).status == 200
    assert len(receiver.got) == 1


def test_a_redirect_to_an_address_inside_is_not_followed():
    inside, resolver = Receiver(), Resolver(["127.0.0.1"])
    with inside.serving(("127.0.0.2", 0)) as inside_url:
        receiver = Receiver(302, headers={"location": inside_url})
        with receiver.serving() as url:
            assert send(named(url), resolver).status == 302
    assert inside.got == []
    assert len(resolver.asked) == 1


def test_a_proxy_in_the_environment_is_not_used(monkeypatch):
    proxy, receiver = Receiver(), Receiver()
    with proxy.serving() as proxy_url, receiver.serving() as url:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy_url)
        assert send(url, Resolver(["127.0.0.1"])).status == 200
    assert (len(proxy.got), len(receiver.got)) == (0, 1)


def test_path_parameters_and_query_arrive_as_they_are_and_a_fragment_does_not():
    receiver = Receiver()
    with receiver.serving() as url:
        send(url + "/a;b=c?d=%20&e=//x#f", Resolver(["127.0.0.1"]))
        send(url.removesuffix("/hook"), Resolver(["127.0.0.1"]))
    assert receiver.paths == ["/hook/a;b=c?d=%20&e=//x", "/"]


@pytest.fixture
def certificate(tmp_path):
    """A certificate for receiver.example, signed by itself, and its key."""
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=receiver.example",
            ),
            *("-addext", "subjectAltName=DNS:receiver.example", "-out", str(files[0]), "-keyout", str(files[1])),
        ],
        check=True,
        capture_output=True,
    )
    return files


def test_tls_asks_for_the_name_and_checks_it_whatever_address_is_dialled(certificate, monkeypatch):
    server, names = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), []
    server.load_cert_chain(*certificate)
    server.sni_callback = lambda _socket, name, _context: names.append(name)
    trusting = ssl.create_default_context(cafile=certificate[0])
    monkeypatch.setattr(webhook, "_certificates", lambda: trusting)
    receiver, resolver = Receiver(), Resolver(["127.0.0.1"])
    with receiver.serving(tls=server) as url:
        assert send(named(url), resolver).status == 200
        assert send(named(url, "receiver.example."), resolver).status == 200
        assert "CERTIFICATE_VERIFY_FAILED" in send(named(url, "other.example"), resolver).error
    assert names == ["receiver.example", "receiver.example", "other.example"]
    assert len(receiver.got) == 2


def test_a_lookup_that_hangs_ends_with_the_attempt():
    hanging = threading.Event()

    async def hang(host, port):
        from asyncio import get_running_loop

        from worker.checked_dialing import _LOOKUPS

        await get_running_loop().run_in_executor(_LOOKUPS, hanging.wait, 30)

    try:
        outcome = post("http://receiver.example/", b"{}", {}, timeout_seconds=0.2, rules=LOCAL, resolve=hang)
    finally:
        hanging.set()
    assert outcome.latency_seconds < 2
    assert "0.2 s" in outcome.error
