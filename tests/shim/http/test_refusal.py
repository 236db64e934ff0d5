"""Refusals are whole HTTP responses in OpenAI's error format."""

import json

import pytest

from services.shim.http import refusal
from services.shim.http.refusal import REASONS, Refusal

REFUSALS = [
    refusal.malformed("m"),
    refusal.malformed("m", 505),
    refusal.header_bytes(7),
    refusal.header_count(7),
    refusal.header_timeout(7),
    refusal.body_timeout(7, 7),
    refusal.chunk_framing(7),
    refusal.max_connections(7),
]


@pytest.mark.parametrize("one", REFUSALS)
def test_a_refusal(one: Refusal) -> None:
    head, _, body = one.response([(b"date", b"today")]).partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    assert line.split()[:2] == ["HTTP/1.1", str(one.status)] and len(line.split()) > 2, "it has a reason phrase"
    assert f"content-length: {len(body)}" in headers and "connection: close" in headers and "date: today" in headers
    assert ("retry-after: 1" in headers) is (one.status == 503)
    error = json.loads(body)["error"]
    assert error["message"] == one.message and error["code"] == one.reason and one.reason in REASONS
    assert error["type"] == ("server_error" if one.status >= 500 else "invalid_request_error")
