"""Web pages of other sites: refused, unless their origin is allowed; then each answer has the CORS headers."""

import asyncio
from typing import Any

import httpx
import pytest

from services.shim.access.origins import is_own
from tests.shim.harness import Shim, error_of

PAGE = "https://chat.example"
TEXT = "/v1/completions"
KEY = {"authorization": "Bearer k"}
ORIGIN, CREDENTIALS = "access-control-allow-origin", "access-control-allow-credentials"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "", "http://test.evil.example", "file://", "test"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_a_page_of_another_site_is_refused(origin: str, method: str) -> None:
    """It could send a simple POST to any server that its visitor can reach."""
    async with Shim(connected=True).http() as http:
        for path in ("/reset_prefix_cache", TEXT, "/v1/models", "/metrics"):
            response = await http.request(method, path, headers={"origin": origin, "content-type": "text/plain"})
            error = error_of(response, 403)
            assert (error["type"], error["code"]) == ("permission_error", "origin_not_allowed")
            assert f"{origin!r}, which is not allowed here; see --allowed-origins" in error["message"]
            assert not [name for name in response.headers if name.startswith("access-control")]


async def test_without_an_origin_or_with_the_own_one_there_is_no_cors() -> None:
    async with Shim(connected=True).http() as http:
        for headers in ({}, {"origin": "http://test"}, {"origin": "https://test"}):
            response = await http.get("/v1/models", headers=headers)
            assert response.status_code == 200 and "vary" not in response.headers
            assert not [name for name in response.headers if name.startswith("access-control")]


async def test_one_good_origin_opens_for_no_other() -> None:
    request = httpx.Request("GET", "http://test/v1/models")
    request.headers = httpx.Headers([("host", "test"), ("origin", "http://test"), ("origin", "https://evil.example")])
    async with Shim(connected=True).http() as http:
        error_of(await http.send(request), 403)


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://a:8000", "a:8000", True),
        ("http://a:8000", "A:8000", True),
        ("https://a", "a", True),
        ("https://a", "a:443", True),
        ("http://a", "a:80", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://a:8000", "a", False),
        ("http://a", "a:443", False),
        ("http://a.b", "a", False),
        ("ftp://a", "a", False),
        ("//a", "a", False),
        ("a", "a", False),
        ("http://", "", False),
        ("null", "null", False),
    ],
)
def test_the_own_origin(origin: str, host: str, own: bool) -> None:
    assert is_own(origin, host) is own


def shim(**options: Any) -> Shim:
    return Shim(connected=True, api_key=("k",), allowed_origins=(PAGE, "http://b"), **options)


async def test_a_preflight_of_an_allowed_page_needs_no_key() -> None:
    ask = {"origin": PAGE, "access-control-request-method": "POST"}
    ask["access-control-request-headers"] = "authorization,content-type"
    async with shim().http() as http:
        response = await http.options(TEXT, headers=ask)
        assert response.status_code == 200 and response.headers[ORIGIN] == PAGE
        assert response.headers["access-control-allow-headers"] == "authorization,content-type"
        assert "POST" in response.headers["access-control-allow-methods"]
        error_of(await http.options(TEXT, headers=ask | {"origin": "https://evil.example"}), 403)
        error_of(await http.options(TEXT), 401)
        error_of(await http.options(TEXT, headers={"origin": PAGE}), 401)


async def test_every_answer_has_the_headers() -> None:
    """Without them a page's script could not read why it was refused."""
    page = {"origin": PAGE}
    async with shim(max_concurrent_requests=1, enable_request_id_headers=True).http() as http:
        for response in (
            await http.get("/health", headers=page),
            await http.get("/v1/models", headers=page),
            await http.get("/v1/models", headers=page | KEY),
            await http.get("/nothing", headers=page | KEY),
            await http.post(TEXT, headers=page | KEY, json={"prompt": 5}),
        ):
            assert response.headers[ORIGIN] == PAGE and response.headers["vary"] == "Origin"
            assert (
                "x-request-id" in response.headers["access-control-expose-headers"]
                and CREDENTIALS not in response.headers
            )
        assert response.status_code == 400


async def test_a_stream_and_a_refusal_beside_it_have_the_headers() -> None:
    one = shim(max_concurrent_requests=1)
    async with one.http() as http:
        body = {"prompt": "a", "stream": True}
        answer = asyncio.create_task(http.post(TEXT, headers=KEY | {"origin": PAGE}, json=body))
        handle = (await one.sent()).submit.choices[0].handle
        refused = await http.post(TEXT, headers=KEY | {"origin": "http://b"}, json=body)
        assert refused.status_code == 429 and refused.headers[ORIGIN] == "http://b"
        one.event(handle, 0, [7], "text")
        one.end(handle)
        response = await answer
    assert response.status_code == 200 and response.headers[ORIGIN] == PAGE
    assert response.headers["content-type"].startswith("text/event-stream")
    assert '"text":"text"' in response.text and "[DONE]" in response.text


async def test_a_bug_has_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    one = shim()
    monkeypatch.setattr(one.client.dispatcher, "outage", None)
    transport = httpx.ASGITransport(one.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        response = await http.get("/health", headers={"origin": PAGE})
    assert response.status_code == 500 and response.headers[ORIGIN] == PAGE


async def test_every_origin_may_be_allowed_as_in_vllm() -> None:
    async with Shim(connected=True, allowed_origins=("*",)).http() as http:
        for origin in ("https://evil.example", "null"):
            response = await http.get("/v1/models", headers={"origin": origin})
            assert response.status_code == 200 and response.headers[ORIGIN] == "*"


async def test_methods_headers_and_credentials() -> None:
    options = {"allowed_methods": ("POST",), "allowed_headers": ("x-mine",), "allow_credentials": True}
    ask = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "x-mine"}
    async with shim(**options).http() as http:
        response = await http.options(TEXT, headers=ask)
        assert response.status_code == 200 and response.headers[CREDENTIALS] == "true"
        for name, value in (("method", "GET"), ("headers", "x-other")):
            refused = await http.options(TEXT, headers=ask | {f"access-control-request-{name}": value})
            assert refused.status_code == 400 and name in refused.text
        assert (await http.get("/health", headers={"origin": PAGE})).headers[CREDENTIALS] == "true"
