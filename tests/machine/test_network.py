"""The loopback address without IPv4, and addresses in URLs."""

import socket
import sys
from collections.abc import Iterator

import pytest

from services.errors import Fatal
from services.machine import authority, is_all_interfaces, loopback, network, unacknowledged_bytes
from services.machine.listen import listen

ABSENT = "192.0.2.1"  # TEST-NET-1 (RFC 5737): no machine has it


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    loopback.cache_clear()
    yield
    loopback.cache_clear()


def test_without_ipv4_the_loopback_address_is_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LOOPBACKS", ((socket.AF_INET, ABSENT), *network.LOOPBACKS[1:]))
    if not has_ipv6():
        pytest.skip("the loopback device has no IPv6 address")
    assert loopback() == "::1"
    with listen(None, 0) as front:
        assert front.getsockname()[0] == "::1"


def test_without_a_loopback_address_the_first_use_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LOOPBACKS", ((socket.AF_INET, ABSENT),))
    assert loopback() == ABSENT


@pytest.mark.parametrize("host", ["x" * 80 + ".test", "192.0.2.1"])
def test_a_foreign_host_is_reported_in_one_line(host: str) -> None:
    with pytest.raises(Fatal, match=f"^cannot listen on {host}:0: "):
        listen(host, 0)


def test_brackets_around_a_host_are_removed() -> None:
    with listen("[127.0.0.1]" if loopback() == "127.0.0.1" else "[::1]", 0) as front:
        assert front.getsockname()[0] == loopback()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says it")
def test_what_the_peer_has_not_taken_is_counted() -> None:
    own, peer = socket.socketpair()
    with own, peer:
        assert unacknowledged_bytes(own) == 0
        own.sendall(b"x" * 1000)
        assert unacknowledged_bytes(own) >= 1000
        peer.recv(2000)
        assert unacknowledged_bytes(own) == 0
    assert unacknowledged_bytes(own) == 0, "it is closed"


def test_an_ipv6_address_gets_brackets() -> None:
    assert (authority("::1", 8000), authority("localhost", 80)) == ("[::1]:8000", "localhost:80")


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as own:
            own.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "all_interfaces"),
    [
        ("0.0.0.0", True), ("::", True), ("::%lo", True), ("::ffff:0.0.0.0", True),
        ("127.0.0.1", False), ("::1", False), ("10.0.0.1", False), ("::ffff:10.0.0.1", False),
    ],
)  # fmt: skip
def test_the_addresses_of_all_interfaces(host: str, all_interfaces: bool) -> None:
    assert is_all_interfaces(host) is all_interfaces
