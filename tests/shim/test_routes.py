"""Every route asks for the key unless it is on the open list, and no way of writing a path goes around that."""

from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Scope

from services.shim.routes import ADMINISTERING, OPEN, route_path
from tests.shim.harness import Shim, error_of

KEY, ADMIN = "a key", "an admin key"
LISTED = {
    "/live",
    "/ready",
    "/health",
    "/ping",
    "/version",
    "/metrics",
    "/load",
}  # by hand: whoever adds to OPEN has to come by here


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_the_open_list() -> None:
    assert OPEN == LISTED and {"/reset_prefix_cache"} == ADMINISTERING


def walk(shim: Shim) -> list[tuple[str, str]]:
    """Every method and path of the application, with a value for each parameter."""
    found = [
        (method, route.path.replace("{model:path}", "fake"))
        for route in shim.routes
        for method in sorted(route.methods)
    ]
    assert len(found) > 10 and not any("{" in path for _, path in found)
    return found


@pytest.mark.parametrize("options", [{"api_key": (KEY,)}, {"admin_api_key": ADMIN}], ids=["key", "admin key only"])
async def test_every_route_but_those_on_the_list_needs_the_key(options: dict[str, Any]) -> None:
    shim = Shim(connected=True, **options)
    async with shim.http() as http:
        for method, path in walk(shim):
            for headers in ({}, bearer("other"), bearer("")):
                response = await http.request(method, path, headers=headers)
                assert (response.status_code == 401) is (path not in LISTED), (method, path)


async def test_a_route_that_comes_later_is_guarded() -> None:
    async def later(request: Request) -> Response:
        return Response("a secret")

    shim = Shim(api_key=(KEY,))
    shim.routes.append(Route("/later", later))
    async with shim.http() as http:
        error_of(await http.get("/later"), 401)
        assert (await http.get("/later", headers=bearer(KEY))).text == "a secret"


async def test_two_keys_in_one_request_are_none() -> None:
    """A proxy in front may look at another one of them."""
    async with Shim(connected=True, api_key=(KEY,)).http() as http:
        for values in ([KEY, KEY], [KEY, "other"], ["other", KEY]):
            given = [("authorization", f"Bearer {value}") for value in values]
            error_of(await http.get("/v1/models", headers=given), 401)


@pytest.mark.parametrize("given", [None, "", KEY, "Bearer", "Bearer other", f"Basic {KEY}"])
async def test_what_is_no_key(given: str | None) -> None:
    headers = {} if given is None else {"authorization": given}
    async with Shim(api_key=(KEY,)).http() as http:
        for path in ("/v1/models", "/nothing"):
            response = await http.get(path, headers=headers)
            error = error_of(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_the_right_key_opens(scheme: str) -> None:
    async with Shim(api_key=("first", KEY)).http() as http:
        for key in ("first", KEY):
            error_of(await http.get("/v1/models", headers={"authorization": f"{scheme} {key}"}), 503)
        error_of(await http.get("/nothing", headers=bearer(KEY)), 404)


async def test_what_administers_needs_the_admin_key_if_there_is_one() -> None:
    reset = "/reset_prefix_cache"
    async with Shim(connected=True, api_key=(KEY,)).http() as http:
        assert (await http.post(reset, headers=bearer(KEY))).status_code == 200
    async with Shim(connected=True, api_key=(KEY,), admin_api_key=ADMIN).http() as http:
        error = error_of(await http.post(reset, headers=bearer(KEY)), 403)
        assert (error["type"], error["code"]) == ("permission_error", "admin_key_required")
        assert (await http.post(reset, headers=bearer(ADMIN))).status_code == 200
        assert (await http.get("/v1/models", headers=bearer(ADMIN))).status_code == 200
        assert (await http.get("/v1/models", headers=bearer(KEY))).status_code == 200


TRICKS = [
    "//v1/models", "/v1//models", "/v1/models/", "/V1/MODELS", "/v1/../v1/models", "/health/../v1/models",
    "/health/%2e%2e/v1/models", "/%76%31/models", "/v1/models%2f", "/v1/models;/health", "/v1/models?/health",
    "/v1/models%00/health", "/v1/models%23/health", "/health%2f..%2fv1%2fmodels", "/health/", "//health", "/HEALTH",
    "/docs", "/openapi.json", "/docs/", "/health%20", "/./health", "/metrics/x", "/v1/models#/health", "", "*",
]  # fmt: skip


@pytest.mark.parametrize("raw", TRICKS)
@pytest.mark.parametrize("root_path", ["", "/root"])
async def test_no_way_of_writing_a_path_opens_it(raw: str, root_path: str) -> None:
    """The path is decoded as uvicorn does it, and sent as it is: a client library would normalise it."""
    path = unquote(raw.partition("?")[0])
    assert await status_of(Shim(connected=True, api_key=(KEY,)).app, root_path + path, root_path) == 401


@pytest.mark.parametrize("path", sorted(LISTED & {"/health", "/version", "/metrics"}))
@pytest.mark.parametrize("root_path", ["", "/root", "/health"])
async def test_an_open_route_is_open_below_a_root_path(path: str, root_path: str) -> None:
    assert await status_of(Shim(connected=True, api_key=(KEY,)).app, root_path + path, root_path) == 200


async def status_of(app: Any, path: str, root_path: str = "") -> int:
    statuses = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http", "method": "GET", "path": path, "root_path": root_path, "query_string": b"",
        "headers": [(b"host", b"localhost")], "http_version": "1.1", "scheme": "http", "server": ("localhost", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    return int(statuses[0])


PARTS = st.sampled_from(["/", "//", "health", "v1", "models", "root", "..", ".", "x", "/root", "/health"])
PATHS = st.lists(PARTS, max_size=5).map("".join)


@given(path=PATHS, root_path=st.sampled_from(["", "/root", "/health", "/v1", "/root/health"]))
def test_the_guard_looks_at_the_path_that_is_routed(path: str, root_path: str) -> None:
    """A path of which guard and router had two opinions would be open."""
    scope: Scope = {"type": "http", "method": "GET", "path": path, "root_path": root_path}

    async def endpoint(request: Request) -> Response:
        raise AssertionError

    found = route_path(scope)
    for route in ("/health", "/v1/models", "/"):
        match, _ = Route(route, endpoint).matches(dict(scope))
        assert (match.name == "FULL") is (found == route)
