"""The loopback address where there is no IPv4, and addresses in URLs."""

import socket
from collections.abc import Iterator

import pytest

from services.errors import Fatal
from services.machine import authority, loopback, network
from services.machine.listen import listen

ABSENT = "192.0.2.1"  # TEST-NET-1 (RFC 5737): no machine's own


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    loopback.cache_clear()
    yield
    loopback.cache_clear()


def test_without_ipv4_it_is_that_of_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LOOPBACKS", ((socket.AF_INET, ABSENT), *network.LOOPBACKS[1:]))
    if not has_ipv6():
        pytest.skip("the loopback device has no IPv6 address")
    assert loopback() == "::1"
    with listen(None, 0) as front:
        assert front.getsockname()[0] == "::1"


def test_without_any_the_first_use_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LOOPBACKS", ((socket.AF_INET, ABSENT),))
    assert loopback() == ABSENT


@pytest.mark.parametrize("host", ["x" * 80 + ".test", "192.0.2.1"])
def test_a_host_that_is_none_of_this_machine_is_one_line(host: str) -> None:
    with pytest.raises(Fatal, match=f"^cannot listen on {host}:0: "):
        listen(host, 0)


def test_brackets_around_a_host_are_taken_off() -> None:
    with listen("[127.0.0.1]" if loopback() == "127.0.0.1" else "[::1]", 0) as front:
        assert front.getsockname()[0] == loopback()


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert (authority("::1", 8000), authority("localhost", 80)) == ("[::1]:8000", "localhost:80")


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as own:
            own.bind(("::1", 0))
    except OSError:
        return False
    return True
