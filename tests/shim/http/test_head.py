"""Heads that are served, and those that a server must refuse (RFC 9112)."""

import pytest

from services.shim.http.head import Head
from services.shim.http.limits import HttpLimits
from services.shim.http.refusal import Refused

LIMITS = HttpLimits(max_header_count=16)


def head(*lines: str | bytes) -> Head:
    texts = [line.encode("latin-1") if isinstance(line, str) else line for line in lines]
    return Head(b"\r\n".join([*texts, b"", b""]), LIMITS)


def refused(*lines: str | bytes) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        head(*lines).scope()
    refusal = caught.value.refusal
    assert refusal.reason == "malformed" or refusal.status == 431
    return refusal.status, refusal.message


def test_the_scope() -> None:
    found = head("POST /a%20b?c=d HTTP/1.1", "Host: x", "X-Some: Value", "Content-Length: 7")
    scope = found.scope()
    assert (scope["method"], scope["path"], scope["raw_path"]) == ("POST", "/a b", b"/a%20b")
    assert (scope["query_string"], scope["http_version"]) == (b"c=d", "1.1")
    assert scope["headers"] == [(b"host", b"x"), (b"x-some", b"Value"), (b"content-length", b"7")]
    assert found.keep_alive and found.framing is not None and found.framing.left == 7


@pytest.mark.parametrize(
    ("target", "path"),
    [("http://x/a?b", "/a"), ("http://x", "/"), ("*", "*"), ("//a//b", "//a//b"), ("/a#b", "/a"), ("/%2e%2e", "/..")],
)
def test_targets(target: str, path: str) -> None:
    assert head(f"OPTIONS {target} HTTP/1.1", "Host: x").scope()["path"] == path


@pytest.mark.parametrize("target", ["a", "a:80", "/\xff", "/a\x7f"])
def test_other_targets_are_refused(target: str) -> None:
    assert refused(f"GET {target} HTTP/1.1", "Host: x")[0] == 400


@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Length: 3", "Content-Length: 3"],
        ["Content-Length: 3", "content-length: 4"],
        ["Content-Length: 3, 3"],
        ["Content-Length: +3"],
        ["Content-Length: 0x3"],
        ["Content-Length: -3"],
        ["Content-Length:"],
        ["Content-Length: 99999999999999999999999"],
        ["Content-Length: 3", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 3"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding : chunked"],
        ["Host: y"],
        ["X: a\x00b"],
        ["X: a\rb"],
        ["X: a\nb: c"],
        ["X\x00: a"],
        [" X: a"],
        ["X: a", " folded"],
        [": a"],
        ["X"],
    ],
)
def test_headers_on_which_parsers_disagree_are_refused(headers: list[str]) -> None:
    assert refused("POST / HTTP/1.1", "Host: x", *headers)[0] == 400


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip", "identity", "xchunked", "chunked;q=1"])
def test_other_codings_are_refused(coding: str) -> None:
    assert refused("POST / HTTP/1.1", "Host: x", f"Transfer-Encoding: {coding}")[0] == 400


def test_http_1_0() -> None:
    found = head("GET / HTTP/1.0", "Connection: keep-alive")
    assert not found.keep_alive, "no Host header is needed, and the connection is closed"
    assert refused("POST / HTTP/1.0", "Transfer-Encoding: chunked")[0] == 400


def test_a_host_is_needed() -> None:
    assert refused("GET / HTTP/1.1") == (400, "the request has 0 Host headers instead of one")


@pytest.mark.parametrize("line", ["GET / HTTP/2.0", "GET / HTTP/0.9", "GET /"])
def test_other_versions(line: str) -> None:
    assert refused(line, "Host: x")[0] == 505


@pytest.mark.parametrize(
    "line", ["PRI * HTTP/2.0", "FOO / HTTP/1.1", "get / HTTP/1.1", "GET / HTTP/1.10", "\x16\x03\x01"]
)
def test_other_request_lines_are_refused(line: str) -> None:
    assert refused(line, "Host: x")[0] == 400


def test_connect_and_upgrades() -> None:
    assert refused("CONNECT x:80 HTTP/1.1", "Host: x")[0] == 501
    upgrade = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"]
    found = head("POST / HTTP/1.1", "Host: x", *upgrade, "Content-Length: 3")
    assert found.framing is not None and found.framing.left == 3 and found.keep_alive, "the offer is ignored"


def test_close() -> None:
    assert not head("GET / HTTP/1.1", "Host: x", "Connection: close").keep_alive


def test_the_number_of_headers_is_limited() -> None:
    head("GET / HTTP/1.1", "Host: x", *[f"X-{index}: a" for index in range(15)])
    status, message = refused("GET / HTTP/1.1", "Host: x", *[f"X-{index}: a" for index in range(16)])
    assert (status, message) == (431, "the request has more than 16 headers")
