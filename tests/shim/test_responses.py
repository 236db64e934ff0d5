"""The HTTP edge alone, without a tokenizer behind it: error shapes, bodies that cannot be read, hang-ups."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message

from services.options.declarations import ShimOptions
from services.rpc.errors import STATUS, TandemError
from services.rpc.hello import make_hello
from services.shim import concurrency
from services.shim.app import make_app
from services.shim.metrics import ShimMetrics
from services.shim.parsing import MAX_BODY_BYTES
from services.shim.responses import ClientGone, error_response, until_disconnected
from services.shim.scrape import Scrape
from services.shim.tokenizer_client import TokenizerClient
from services.telemetry.tracing import set_up_tracing

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
KEY = "a key"


def _app(api_key: str | None) -> ASGIApp:
    registry = CollectorRegistry()
    client = TokenizerClient((), make_hello("shim"))
    options, metrics = ShimOptions(api_key=api_key), ShimMetrics(registry)
    return make_app(client, set(), options, metrics, Scrape(registry, ()), set_up_tracing("shim", None))


@pytest.fixture
async def app() -> ASGIApp:
    return _app(None)


@pytest.fixture
async def locked() -> ASGIApp:
    return _app(KEY)


@pytest.fixture
async def http(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(app) as client:
        yield client


def open_client(app: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The body's error, in OpenAI's shape and no other."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return dict(body["error"])


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing"])
async def test_an_unknown_route(http: httpx.AsyncClient, path: str) -> None:
    error = error_of(await http.get(path, follow_redirects=False), 404)
    assert (error["type"], error["code"]) == ("invalid_request_error", None)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_wrong_method_names_the_right_one(http: httpx.AsyncClient, path: str) -> None:
    response = await http.get(path)
    assert error_of(response, 405)["type"] == "invalid_request_error"
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nothing", b'{"a": NaN}', b'{"a": "\xff"}', b'{"a": "\\ud800"}', b"[" * 10**5, b"\xef\xbb\xbf{}"],
)
async def test_a_body_that_is_no_json(http: httpx.AsyncClient, body: bytes) -> None:
    error = error_of(await http.post("/v1/completions", content=body), 400)
    assert error["message"].startswith("the request body is not JSON")


@pytest.mark.parametrize("body", ["[]", '"text"', "5", "null", "true"])
async def test_a_body_that_is_no_object(http: httpx.AsyncClient, body: str) -> None:
    error = error_of(await http.post("/v1/completions", content=body), 400)
    assert error["message"] == "the request body is not a JSON object"


async def test_a_body_that_is_too_large(http: httpx.AsyncClient) -> None:
    error = error_of(await http.post("/v1/completions", content=bytes(MAX_BODY_BYTES + 1)), 400)
    assert error["message"] == f"the request body is larger than {MAX_BODY_BYTES} bytes"


@pytest.mark.parametrize("depth", [100, 400, 800, 1000])
async def test_deeply_nested_json_is_no_bug(http: httpx.AsyncClient, depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    body = b'{"messages": [{"role": "user", "content": "Hi", "extra": ' + nested + b"}]}"
    assert (await http.post("/v1/chat/completions", content=body)).status_code in {400, 503}


async def test_the_error_names_the_field(http: httpx.AsyncClient) -> None:
    error = error_of(await http.post("/v1/chat/completions", json=CHAT | {"temperature": 3}), 400)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "temperature", None)


async def test_null_means_absent(http: httpx.AsyncClient) -> None:
    """A valid request: what is missing is only the model behind."""
    nulls = dict.fromkeys(["temperature", "stop", "stream", "stream_options", "n", "tools", "logit_bias"])
    error = error_of(await http.post("/v1/chat/completions", json=CHAT | nulls), 503)
    assert (error["type"], error["message"]) == ("server_error", "the model is still being loaded")


async def test_without_a_model(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).status_code == 503
    assert (await http.get("/version")).status_code == 200
    error_of(await http.get("/v1/models"), 503)
    response = await http.post("/v1/completions", json={"prompt": "Hi"})
    error_of(response, 503)
    assert response.headers["retry-after"] == "2"


async def test_bodies_together_are_bounded(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one holds is free again once it has been answered."""
    monkeypatch.setattr(concurrency, "MAX_HELD_BYTES", 1000)
    for _ in range(2):
        response = await http.post("/v1/completions", json={"prompt": "x" * 1000})
        assert "hold 1000 bytes" in error_of(response, 429)["message"]
        assert response.headers["retry-after"] == "1"
        error_of(await http.post("/v1/completions", json={"prompt": "x" * 900}), 503)


@pytest.mark.parametrize("given", [None, "", KEY, "Bearer", "Bearer other", f"Basic {KEY}"])
async def test_v1_needs_the_key(locked: ASGIApp, given: str | None) -> None:
    headers = {} if given is None else {"authorization": given}
    async with open_client(locked) as client:
        for path in ("/v1/models", "/v1/nothing"):
            error = error_of(await client.get(path, headers=headers), 401)
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/version")).status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_the_right_key_opens(locked: ASGIApp, scheme: str) -> None:
    async with open_client(locked) as client:
        error_of(await client.get("/v1/models", headers={"authorization": f"{scheme} {KEY}"}), 503)


@pytest.mark.parametrize("code", STATUS)
def test_the_table_of_errors(code: str) -> None:
    response = error_response(TandemError(code, "why", "what"))
    error = json.loads(bytes(response.body))["error"]
    assert response.status_code == STATUS[code].http
    assert (error["message"], error["type"], error["param"]) == ("why", STATUS[code].openai_type, "what")


async def test_a_client_that_hangs_up_while_it_sends(app: ASGIApp) -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": b'{"prompt"', "more_body": True},
        {"type": "http.disconnect"},
    ]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        assert message.get("status") in {499, None}

    await app(scope, receive, send)  # raises nothing
    assert not messages


async def test_work_ends_when_the_client_hangs_up() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            stopped.set()

    async def receive() -> Message:
        await started.wait()
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await until_disconnected(receive, work())
    assert stopped.is_set()


async def test_work_that_is_done_wins_over_a_hang_up() -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def work() -> int:
        return 5

    assert await until_disconnected(receive, work()) == 5


async def test_the_error_of_the_work_comes_through() -> None:
    async def receive() -> Message:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def work() -> int:
        raise TandemError("NOT_FOUND", "no")

    with pytest.raises(TandemError, match="no"):
        await until_disconnected(receive, work())
