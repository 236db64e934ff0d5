"""The application alone: routes, limits on work in progress, and the error of each kind of failure."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import Message

from services.shim import in_progress
from services.shim.routes import PATHS, administers, is_limited, is_open
from tests.shim.harness import Shim, error_of

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with Shim().http() as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing"])
async def test_an_unknown_route(http: httpx.AsyncClient, path: str) -> None:
    for method in ("GET", "POST"):
        error = error_of(await http.request(method, path, follow_redirects=False), 404)
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)
        assert error["message"] == f"Invalid URL ({method} {path}): Not Found; /docs lists the routes"


async def test_a_long_url_is_cut_in_the_message(http: httpx.AsyncClient) -> None:
    message = error_of(await http.get("/v1/" + "x" * 5000), 404)["message"]
    assert message.startswith("Invalid URL (GET /v1/xxx") and len(message) < 300


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_wrong_method_names_the_right_one(http: httpx.AsyncClient, path: str) -> None:
    response = await http.get(path)
    error = error_of(response, 405)
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(f"Invalid URL (GET {path}): Method Not Allowed")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "model still loading"])
async def test_the_error_names_the_field(connected: bool) -> None:
    async with Shim(connected=connected).http() as http:
        response = await http.post("/v1/chat/completions", json=CHAT | {"temperature": 3})
    error = error_of(response, 400)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "temperature", None)


async def test_a_valid_request_waits_for_no_model(http: httpx.AsyncClient) -> None:
    error = error_of(await http.post("/v1/chat/completions", json=CHAT), 503)
    assert (error["type"], error["message"]) == ("server_error", "the model is still being loaded")


async def test_without_a_model(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).status_code == 503
    assert (await http.get("/version")).status_code == 200
    error_of(await http.get("/v1/models"), 503)
    response = await http.post("/v1/completions", json={"prompt": "Hi"})
    error_of(response, 503)
    assert response.headers["retry-after"] == "2"


# path, methods, whether it answers without the key, whether it administers, whether its POST requests are limited
ROUTES = [
    ("/v1/chat/completions", {"POST"}, False, False, True),
    ("/v1/completions", {"POST"}, False, False, True),
    ("/v1/chat/completions/batch", {"POST"}, False, False, True),
    ("/inference/v1/generate", {"POST"}, False, False, True),
    ("/invocations", {"POST"}, False, False, True),
    ("/v1/chat/completions/render", {"POST"}, False, False, True),
    ("/v1/completions/render", {"POST"}, False, False, True),
    ("/tokenize", {"POST"}, False, False, True),
    ("/detokenize", {"POST"}, False, False, True),
    ("/tokenizer_info", {"GET", "HEAD"}, False, False, False),
    ("/v1/models", {"GET", "HEAD"}, False, False, True),
    ("/v1/models/{model:path}", {"GET", "HEAD"}, False, False, True),
    ("/reset_prefix_cache", {"POST"}, False, True, False),
    ("/live", {"GET", "HEAD"}, True, False, False),
    ("/ready", {"GET", "HEAD"}, True, False, False),
    ("/health", {"GET", "HEAD"}, True, False, False),
    ("/ping", {"GET", "HEAD", "POST"}, True, False, False),
    ("/load", {"GET", "HEAD"}, True, False, False),
    ("/version", {"GET", "HEAD"}, True, False, False),
    ("/server_info", {"GET", "HEAD"}, False, False, False),
    ("/metrics", {"GET", "HEAD"}, True, False, False),
    ("/openapi.json", {"GET", "HEAD"}, False, False, False),
    ("/docs", {"GET", "HEAD"}, False, False, False),
]


async def test_the_routes_are_those_of_the_table() -> None:
    assert [(route.path, route.methods) for route in Shim().routes] == [row[:2] for row in ROUTES]
    assert list(dict.fromkeys(path.path for path in PATHS)) == [row[0] for row in ROUTES]


@pytest.mark.parametrize(
    ("path", "methods", "opened", "administering", "limited"), ROUTES, ids=[row[0] for row in ROUTES]
)
def test_the_rules_of_each_path(path: str, methods: set[str], opened: bool, administering: bool, limited: bool) -> None:
    assert (is_open(path), administers(path), is_limited(path)) == (opened, administering, limited)


@pytest.mark.parametrize(
    ("method", "path", "labels"),
    [
        ("GET", "/version", ("GET", "/version")),
        ("HEAD", "/version", ("HEAD", "/version")),
        ("GET", "/v1/models/a", ("GET", "other")),
        ("POST", "/v1/nothing", ("POST", "other")),
        ("PATCH", "/coffee", ("other", "other")),
        ("BREW", "/version", ("other", "/version")),
    ],
)
async def test_responses_are_counted_by_method_and_path(method: str, path: str, labels: tuple[str, str]) -> None:
    shim = Shim()
    async with shim.http() as client:
        status = (await client.request(method, path)).status_code
    found = {
        (sample.labels["method"], sample.labels["path"], sample.labels["status"]): sample.value
        for metric in shim.registry.collect()
        for sample in metric.samples
        if sample.name == "tandem:http_requests_total"
    }
    assert found == {(*labels, str(status)): 1}


async def test_a_bug_is_an_error_in_the_same_format(monkeypatch: pytest.MonkeyPatch) -> None:
    shim = Shim()
    monkeypatch.setattr(shim.client.dispatcher, "outage", None)
    transport = httpx.ASGITransport(shim.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        error = error_of(await client.get("/health"), 500)
    assert error["message"] == "internal server error; the server's log has the details"
    labels = {"method": "GET", "path": "/health", "status": "500"}
    assert shim.registry.get_sample_value("tandem:http_requests_total", labels) == 1


async def test_only_requests_in_progress_count(monkeypatch: pytest.MonkeyPatch) -> None:
    shim = Shim(connected=True, max_concurrent_requests=1)
    async with shim.http() as client:
        first = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a"}))
        handle = (await shim.sent()).submit.choices[0].handle
        refused = error_of(await client.post("/v1/completions", json={"prompt": "a"}), 429)
        assert "1 requests are in progress, the limit set by max_concurrent_requests" in refused["message"]
        error_of(await client.post("/v1/nothing"), 429)
        assert (await client.get("/v1/models")).status_code == 200
        assert (await client.post("/reset_prefix_cache")).status_code == 200
        shim.end(handle)
        assert (await first).status_code == 200
        error_of(await client.post("/v1/nothing"), 404)
    labels = {"reason": "max_concurrent_requests"}
    assert shim.registry.get_sample_value("tandem:http_rejections_total", labels) == 2


async def test_bodies_together_are_bounded(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one holds is free again once it has been answered."""
    monkeypatch.setattr(in_progress, "MAX_HELD_BYTES", 1000)
    monkeypatch.setattr(in_progress, "SMALL_BYTES", 0)
    for _ in range(2):
        response = await http.post("/v1/completions", json={"prompt": "x" * 1000})
        assert "more than 1000 bytes" in error_of(response, 429)["message"]
        assert response.headers["retry-after"] == "1"
        error_of(await http.post("/v1/completions", json={"prompt": "x" * 900}), 503)


async def test_a_client_that_hangs_up_while_it_sends() -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": b'{"prompt"', "more_body": True},
        {"type": "http.disconnect"},
    ]
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        assert message.get("status") in {499, None}

    await Shim().app(scope, receive, send)  # raises nothing
    assert not messages
