"""A body must be declared as JSON: a web page can send every other kind to any site."""

import httpx
import pytest

from services.shim.apis.all import APIS
from tests.shim.harness import Shim, error_of

FORM = "application/x-www-form-urlencoded"  # what curl -d sends without -H
BODY = b'{"prompt": 5, "messages": 5}'


def request(path: str, content_type: str | None) -> httpx.Request:
    headers = {} if content_type is None else {"content-type": content_type}
    return httpx.Request("POST", f"http://test{path}", content=BODY, headers=headers)


@pytest.mark.parametrize("path", [api.path.path for api in APIS])
@pytest.mark.parametrize(
    "given",
    [None, "", FORM, "text/plain", "text/plain; application/json", "multipart/form-data; boundary=application/json",
     "application/json-patch+json", "application/jsonp", "text/json", "application/json,text/plain", "/json"],
)  # fmt: skip
async def test_any_other_type_is_refused(path: str, given: str | None) -> None:
    async with Shim(connected=True).http() as http:
        error = error_of(await http.send(request(path, given)), 400)
    assert (error["type"], error["code"]) == ("invalid_request_error", "unsupported_content_type")
    assert error["message"].startswith(
        f"the header Content-Type {f'is {given!r}' if given else 'is missing'}, but only"
    )
    assert error["message"].endswith("application/json is allowed; with curl: -H 'Content-Type: application/json'")


@pytest.mark.parametrize("path", [api.path.path for api in APIS])
@pytest.mark.parametrize(
    "given", ["application/json", "Application/JSON", "application/json; charset=utf-8", "application/json ;x=y"]
)
async def test_json_is_read(path: str, given: str) -> None:
    async with Shim(connected=True).http() as http:
        error = error_of(await http.send(request(path, given)), 400)
    assert error["param"] in {"prompt", "messages"}


async def test_what_has_no_body_needs_no_type() -> None:
    async with Shim(connected=True).http() as http:
        response = await http.send(httpx.Request("POST", "http://test/reset_prefix_cache"))
    assert response.status_code == 200
