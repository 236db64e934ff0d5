"""Which hosts a request may name, and on which addresses that is checked."""

import logging
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.options.declarations import ShimOptions
from services.shim.access.hosts import AllowedHosts, allowed_hosts
from tests.shim.harness import Shim, error_of

LOOPBACK = "127.0.0.1"
# The page of evil.example, whose name resolves to 127.0.0.1 by now, is of one origin with this server.
REBOUND = {"host": "evil.example:8000", "origin": "http://evil.example:8000"}


async def status(headers: dict[str, str], **options: Any) -> int:
    async with Shim(connected=True, **options).http() as http:
        return (await http.get("/v1/models", headers=headers)).status_code


@pytest.mark.parametrize("bound", ["127.0.0.1", "127.8.9.1", "::1"])
async def test_a_rebound_name_is_refused_on_a_loopback_address(bound: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Shim(connected=True, bound=bound).http() as http:
        for path in ("/v1/models", "/metrics", "/health", "/docs"):
            error = error_of(await http.get(path, headers=REBOUND), 403)
            assert (error["type"], error["code"]) == ("permission_error", "host_not_allowed")
            assert "'evil.example:8000' in the header Host is not allowed here; see --allowed-hosts" in error["message"]
    assert "Host 'evil.example:8000' was refused" in caplog.text


HARMLESS = [
    "localhost", "localhost:8000", "LOCALHOST", "localhost.", "api.localhost:1", "127.0.0.1", "127.0.0.1:8000", "[::1]",
    "[::1]:8000", "127.1.2.3", "192.168.1.9:8000", "[2001:db8::1]:80", "0.0.0.0:8000",
]  # fmt: skip
HARMFUL = [
    "evil.example", "localhost.evil.example", "evillocalhost", "127.0.0.1.evil.example", "127.0.0.1@evil.example",
    "localhost:8000:evil.example", "[::1", "[evil.example]", "::1", "evil.example#localhost", "a b", ".", "",
    ".localhost.evil.example", "localhost,evil.example", "lоcalhost".encode().decode("latin-1"),
]  # fmt: skip


@pytest.mark.parametrize("host", HARMLESS)
def test_harmless_hosts(host: str) -> None:
    assert AllowedHosts([]).allows(host)


@pytest.mark.parametrize("host", HARMFUL)
def test_harmful_hosts(host: str) -> None:
    assert not AllowedHosts([]).allows(host)
    assert not AllowedHosts(["*.example.com", "api.example.org"]).allows(host)


@given(st.text(max_size=30))
def test_no_text_is_a_bug(host: str) -> None:
    AllowedHosts(["*.example.com"]).allows(host)


@given(st.from_regex(r"[a-z0-9-]{1,10}(\.[a-z0-9-]{1,10}){0,3}", fullmatch=True))
def test_a_name_that_nobody_named_is_refused(name: str) -> None:
    ends = name.rpartition(".")[2]
    assert AllowedHosts([]).allows(name) is (ends == "localhost" or (ends.isdigit() and is_ipv4(name)))
    assert AllowedHosts([name.upper()]).allows(f"{name}:80")
    assert AllowedHosts([f"*.{name}"]).allows(f"a.{name}")
    assert not AllowedHosts([f"*.{name}"]).allows(f"a{name}x")


def is_ipv4(name: str) -> bool:
    parts = name.split(".")
    return len(parts) == 4 and all(part.isdigit() and str(int(part)) == part and int(part) < 256 for part in parts)


@pytest.mark.parametrize(
    ("bound", "options", "passes"),
    [
        (LOOPBACK, {}, False),
        ("::1", {}, False),
        ("0.0.0.0", {}, True),
        ("::", {}, True),
        ("192.168.1.9", {}, True),
        ("fe80::1%eth0", {}, True),
        ("", {}, True),  # a Unix socket
        (LOOPBACK, {"host": "evil.example"}, True),
        (LOOPBACK, {"allowed_hosts": ("*",)}, True),
        (LOOPBACK, {"allowed_hosts": ("Evil.Example",)}, True),
        (LOOPBACK, {"allowed_hosts": ("*.example",)}, True),
        (LOOPBACK, {"allowed_hosts": ("other.example",)}, False),
        ("0.0.0.0", {"allowed_hosts": ("other.example",)}, False),
        ("", {"allowed_hosts": ("other.example",)}, False),
    ],
)
async def test_where_hosts_are_checked(bound: str, options: dict[str, Any], passes: bool) -> None:
    found = allowed_hosts(ShimOptions(**options), bound)
    assert (found is None or found.allows("evil.example:8000")) is passes
    assert await status({"host": "evil.example"}, bound=bound, **options) == (200 if passes else 403)
    assert await status({"host": "0.0.0.0:8000"}, bound=bound, **options) == 200, "as the launcher's health check"


@pytest.mark.parametrize("bound", [LOOPBACK, "0.0.0.0"])
async def test_a_request_has_one_host(bound: str) -> None:
    """RFC 9112, section 3.2."""
    async with Shim(connected=True, bound=bound).http() as http:
        two = [("host", "localhost"), ("host", "localhost")]
        request = httpx.Request("GET", "http://test/health")
        for headers, said in (([], "has 0 Host headers"), (two, "has 2 Host headers")):
            request.headers = httpx.Headers(headers)
            assert said in error_of(await http.send(request), 400)["message"]


async def test_the_host_is_checked_before_the_key() -> None:
    assert await status(REBOUND, bound=LOOPBACK, api_key=("k",)) == 403
