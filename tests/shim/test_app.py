"""The application alone: routes, the API key, limits on work in progress, and the error of each kind of failure."""

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import Message

from services.shim import concurrency
from tests.shim.harness import Shim, error_of

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
KEY = "a key"


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with Shim().http() as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing"])
async def test_an_unknown_route(http: httpx.AsyncClient, path: str) -> None:
    error = error_of(await http.get(path, follow_redirects=False), 404)
    assert (error["type"], error["code"]) == ("invalid_request_error", None)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_wrong_method_names_the_right_one(http: httpx.AsyncClient, path: str) -> None:
    response = await http.get(path)
    assert error_of(response, 405)["type"] == "invalid_request_error"
    assert response.headers["allow"] == "POST"


async def test_the_error_names_the_field() -> None:
    async with Shim(connected=True).http() as http:
        response = await http.post("/v1/chat/completions", json=CHAT | {"temperature": 3})
    error = error_of(response, 400)
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
        assert "more than 1000 bytes" in error_of(response, 429)["message"]
        assert response.headers["retry-after"] == "1"
        error_of(await http.post("/v1/completions", json={"prompt": "x" * 900}), 503)


@pytest.mark.parametrize("given", [None, "", KEY, "Bearer", "Bearer other", f"Basic {KEY}"])
async def test_v1_needs_the_key(given: str | None) -> None:
    headers = {} if given is None else {"authorization": given}
    async with Shim(api_key=KEY).http() as client:
        for path in ("/v1/models", "/v1/nothing"):
            error = error_of(await client.get(path, headers=headers), 401)
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/version")).status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_the_right_key_opens(scheme: str) -> None:
    async with Shim(api_key=KEY).http() as client:
        error_of(await client.get("/v1/models", headers={"authorization": f"{scheme} {KEY}"}), 503)


async def test_a_client_that_hangs_up_while_it_sends() -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": b'{"prompt"', "more_body": True},
        {"type": "http.disconnect"},
    ]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        assert message.get("status") in {499, None}

    await Shim().app(scope, receive, send)  # raises nothing
    assert not messages
