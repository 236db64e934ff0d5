"""The limit on each body: by Content-Length before anything is read, and while a body of unknown length is read."""

from collections.abc import AsyncIterator

import pytest

from services.shim.body_limit import body_limit
from services.shim.routes import PATHS, SMALL_BODY_BYTES
from tests.shim.calls import CHAT, TEXT
from tests.shim.harness import Shim, error_of

LIMIT = 2000


def test_only_routes_for_text_take_large_bodies() -> None:
    large = {one.path for one in PATHS if body_limit(one.path, 10**9) == 10**9}
    assert large == {
        *(CHAT, TEXT, "/v1/chat/completions/batch", "/v1/chat/completions/render", "/v1/completions/render"),
        *("/inference/v1/generate", "/invocations", "/tokenize", "/detokenize"),
    }
    assert body_limit("/reset_prefix_cache", 10**9) == body_limit("/nothing", 10**9) == SMALL_BODY_BYTES


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_declared_length_is_refused_before_the_body_is_read(path: str) -> None:
    async def unread() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    async with Shim(connected=True, max_request_body_bytes=LIMIT).http() as http:
        for length in (str(LIMIT + 1), "9" * 5000):
            response = await http.post(path, content=unread(), headers={"content-length": length})
            error = error_of(response, 413)
            expected = f"the request body is larger than {LIMIT} bytes, the limit set by max_request_body_bytes"
            assert (error["message"], error["type"]) == (expected, "invalid_request_error")


async def test_a_body_of_unknown_length_is_refused_while_it_is_read() -> None:
    shim = Shim(connected=True, max_request_body_bytes=LIMIT)
    read = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(1000):
            read += 100
            yield b"[" * 100

    async with shim.http() as http:
        error_of(await http.post(TEXT, content=parts()), 413)
        assert LIMIT < read <= LIMIT + 100 and shim.in_progress.num_bytes == 0
        error = error_of(await http.post(TEXT, content=b"[" * LIMIT), 400)
        assert error["message"] == "the request body is not a JSON object"


@pytest.mark.parametrize(("method", "path"), [("POST", "/reset_prefix_cache"), ("GET", "/health"), ("POST", "/v1/no")])
async def test_other_routes_take_small_bodies(method: str, path: str) -> None:
    async with Shim(connected=True).http() as http:
        error = error_of(await http.request(method, path, content=bytes(SMALL_BODY_BYTES + 1)), 413)
        assert error["message"].endswith(f"{SMALL_BODY_BYTES} bytes, the limit set by its path")
        assert (await http.request(method, path, content=bytes(SMALL_BODY_BYTES))).status_code in (200, 404)
