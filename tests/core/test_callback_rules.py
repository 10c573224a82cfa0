"""Where callbacks may go: a table of hostile addresses, none of which is let through, and what an operator can allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from core.callback_addresses import DENIED, canonical, denial
from core.callback_rules import PUBLIC, CallbackRules
from core.settings import Settings

# Hosts of URLs that lead inside, or that are read differently by different readers.
HOSTS = [
    # IPv4, as it is usually written
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255"),
    *("192.168.1.1", "169.254.169.254", "169.254.170.2", "100.64.0.1", "100.100.100.200", "100.127.255.255"),
    *("168.63.129.16", "192.0.0.1", "192.0.0.192", "192.0.2.1", "198.51.100.7", "203.0.113.9", "192.88.99.1"),
    *("198.18.0.1", "198.19.255.255", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    # in any other notation, whatever it stands for
    *("2130706433", "017700000001", "0x7f000001", "0x7F.0.0.1", "0177.0.0.1", "127.1", "127.0.1", "0", "0x0", "127.000.0.1"),
    *("134744072", "8.8.2056", "127.0.0.1.", "0x7f000001.", "256.256.256.256", "999.1.1.1", "1.2.3.4.5", "foo.127"),
    # IPv6
    *("[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[fe80::1]", "[febf::1]", "[fc00::1]", "[fd00:ec2::254]", "[fec0::1]"),
    *("[ff02::1]", "[2001:db8::1]", "[3fff::1]", "[100::1]", "[5f00::1]", "[4000::1]", "[2001::1]", "[2001:2::1]"),
    *("[fe80::1%25eth0]", "[fe80::1%eth0]", "[::1%251]"),
    # IPv4 inside IPv6
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:a9fe:a9fe]", "[0:0:0:0:0:ffff:10.0.0.1]", "[::127.0.0.1]"),
    *("[::ffff:0:127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b::169.254.169.254]", "[64:ff9b:1::a00:1]"),
    *("[2002:7f00:1::]", "[2002:a9fe:a9fe::1]", "[2001:0:4136:e378:8000:63bf:80ff:fffe]", "[2606:4700::5efe:127.0.0.1]"),
    # names
    *("localhost", "LOCALHOST", "localhost.", "a.localhost", "a..b", "-a.example", "a.example-", "a" * 64 + ".example"),
    # what one reader takes apart and another does not
    *("127.0.0.1%2f", "a%2eexample", "a%00.example", "user@127.0.0.1", "example.com@127.0.0.1", "a\\@127.0.0.1"),
    *("a\\.example", "[::1", "::1", "[1.2.3.4]", "[v1.x]", "[::1].example", "127.0.0.1:443:443"),
    # what is not ASCII: full-width digits, a circled one, an ideographic full stop, a soft hyphen
    *("\uff11\uff12\uff17.0.0.1", "①27.0.0.1", "127。0。0。1", "loc\u00adalhost", "ⓛocalhost", "münchen.example"),
]  # fmt: skip
URLS = [
    *("http://example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "HTTP://example.com/"),
    *("https:///x", "//example.com/", "https:example.com", "javascript:alert(1)", "https://example.com:80/"),
    *("https://example.com:22/", "https://example.com:8443/", "https://example.com:0/", "https://example.com:65536/"),
    *("https://u@example.com/", "https://u:p@example.com/", "https://:@example.com/", "https://@example.com/"),
    *("https://example.com/a b", "https://exa\tmple.com/", "https://example.com\r\nHost: x/", "https://example.com/ü", ""),
]  # fmt: skip


def test_the_table_is_long():
    assert len({*HOSTS}) + len({*URLS}) > 120


@pytest.mark.parametrize("host", HOSTS, ids=ascii)
def test_a_hostile_host_is_refused_at_submit(host):
    assert PUBLIC.url_fault(f"https://{host}/hook")


@pytest.mark.parametrize("url", URLS, ids=ascii)
def test_a_hostile_url_is_refused_at_submit(url):
    assert PUBLIC.url_fault(url)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "https://example.com",
            "https://example.com:443/a?b=c#d",
            "https://example.com./",
            "https://xn--mnchen-3ya.example/",
        ),
        *("https://8.8.8.8/", "https://[2606:4700::1111]/", "https://_a.b-c.example/", "https://1a.example/"),
        "https://172.15.255.255/",
        "https://172.32.0.1/",
        "https://100.63.255.255/",
        "https://100.128.0.1/",
        "https://internal.example/",  # where it leads is seen at each delivery
    ],
)
def test_a_public_address_or_a_name_is_taken(url):
    assert PUBLIC.url_fault(url) is None


@pytest.mark.parametrize(("network", "why"), DENIED, ids=str)
def test_both_ends_of_every_denied_network_are_denied(network, why):
    for address in (network[0], network[-1]):
        assert denial(canonical(str(address)))
        if address.version == 6 and address.ipv4_mapped is None:
            assert denial(address)


@given(st.ip_addresses(v=4))
def test_what_leads_inside_does_so_in_every_dress(address):
    """An IPv4 address is judged the same when it is mapped into IPv6; tunnelled, it is never let through."""
    assert PUBLIC.url_fault(f"https://[::ffff:{address}]/") == PUBLIC.url_fault(f"https://{address}/")
    number = int(address)
    for tunnel in (f"::{address}", f"64:ff9b::{address}", f"2002:{number >> 16:x}:{number & 0xFFFF:x}::1"):
        assert PUBLIC.url_fault(f"https://[{tunnel}]/")


@given(st.ip_addresses())
def test_nothing_that_python_calls_special_is_let_through(address):
    if denial(address) is None:
        assert address.is_global
        assert not address.is_multicast


def test_a_name_is_refused_if_one_of_its_addresses_is():
    assert [str(address) for address in PUBLIC.checked(["8.8.8.8", "2606:4700::1111", "8.8.8.8"])] == [
        "8.8.8.8",
        "2606:4700::1111",
    ]
    for inside in ("10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "no address"):
        with pytest.raises(ValueError, match=r"leads to 10.0.0.1 .private.|zone|does not appear"):
            PUBLIC.checked(["8.8.8.8", inside])


def test_the_operator_allows_networks_ports_and_http():
    rules = CallbackRules.of(
        Settings(
            webhook_allow_cidrs="10.1.0.0/16, fd00::/8", webhook_allow_ports="80,8000-8002", webhook_allow_http=True
        )
    )
    for url in ("http://10.1.2.3/", "http://[fd00::1]/", "https://[::ffff:10.1.2.3]:8001/", "http://example.com:8002/"):
        assert rules.url_fault(url) is None
    assert "10.2.0.1 (private)" in rules.url_fault("http://10.2.0.1/")
    assert "port 443; this server sends to 80, 8000-8002 alone" in rules.url_fault("https://example.com/")
    assert "loopback" in rules.url_fault("http://localhost/")
    in_the_clear = CallbackRules(ports=(range(1, 65_536),)).url_fault("http://example.com/")
    assert in_the_clear == "must begin with https://: this server sends nothing in the clear"


@pytest.mark.parametrize(
    "wrong",
    [
        {"webhook_allow_cidrs": "10.0.0.1/8"},
        {"webhook_allow_cidrs": "inside"},
        {"webhook_allow_ports": ""},
        {"webhook_allow_ports": "0"},
        {"webhook_allow_ports": "443,65536"},
        {"webhook_allow_ports": "9-8"},
        {"webhook_allow_ports": "https"},
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_read_is_refused_at_the_start(wrong):
    with pytest.raises(ValidationError):
        Settings(**wrong)
