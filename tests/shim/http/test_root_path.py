"""--root-path: every route with the prefix and without it, and the key is asked for on both."""

import json

import pytest

from tests.shim.harness import Shim, error_of


@pytest.mark.parametrize("prefix", ["", "/tandem/api"])
async def test_routes_with_and_without_the_prefix(prefix: str) -> None:
    shim = Shim(connected=True, root_path="/tandem/api")
    async with shim.http() as http:
        assert (await http.get(f"{prefix}/v1/models")).json()["data"]
        assert (await http.get(f"{prefix}/health")).status_code == 200
        document = (await http.get(f"{prefix}/openapi.json")).json()
        assert document["servers"] == [{"url": "/tandem/api"}]
        docs = (await http.get(f"{prefix}/docs")).text
        assert "All routes are below <code>/tandem/api</code>" in docs and "href=openapi.json" in docs
    labels = {"method": "GET", "path": "/v1/models", "status": "200"}
    assert shim.registry.get_sample_value("tandem:http_requests_total", labels) == 1


@pytest.mark.parametrize("prefix", ["", "/tandem", "/tandem/tandem", "//tandem", "/tandem/."])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/reset_prefix_cache"])
async def test_the_prefix_is_no_way_around_the_key(prefix: str, path: str) -> None:
    shim = Shim(connected=True, root_path="/tandem", api_key="secret")
    async with shim.http() as http:
        for method in ("GET", "POST"):
            response = await http.request(method, prefix + path, content=json.dumps({"prompt": "a"}))
            assert response.status_code in (401, 404), prefix
        if prefix in ("", "/tandem"):
            error_of(response, 401)


async def test_other_prefixes_and_no_option() -> None:
    async with Shim(connected=True, root_path="/tandem").http() as http:
        assert (await http.get("/tandemx/health")).status_code == 404
        assert (await http.get("/tandem")).status_code == 404
    async with Shim(connected=True).http() as http:
        assert (await http.get("/tandem/health")).status_code == 404
        assert "servers" not in (await http.get("/openapi.json")).json()
