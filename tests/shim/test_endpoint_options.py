"""What the shim's options, the usage of a stream and the id of a request change in responses."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.shim.calls import BODIES, CHAT, TEXT, both, handles_of, post
from tests.shim.harness import Shim, error_of


async def finished(shim: Shim, path: str = CHAT, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    """Returns the response to a request with choices that all end after one token."""
    async with shim.http() as http:
        answer = asyncio.create_task(http.post(path, json=BODIES[path] | body, headers=headers or {}))
        for handle in await handles_of(shim):
            shim.accept(handle, [1, 2], cached_tokens=1)
            shim.event(handle, 0, [7], "a")
            shim.end(handle, prompt_tokens=2, output_tokens=1, cached_tokens=1)
        return await answer


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


@both
async def test_forced_usage(path: str) -> None:
    assert "usage" not in chunks_of(await finished(Shim(connected=True), path, stream=True))[-1]
    forced = Shim(connected=True, enable_force_include_usage=True)
    *chunks, last = chunks_of(await finished(forced, path, stream=True))
    assert chunks and all(chunk["usage"] for chunk in chunks)
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 3


@both
async def test_continuous_usage(path: str) -> None:
    options: dict[str, Any] = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = chunks_of(await finished(Shim(connected=True), path, stream=True, stream_options=options))
    assert chunks and all(chunk["usage"]["prompt_tokens"] == 2 for chunk in chunks)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == sorted(
        chunk["usage"]["completion_tokens"] for chunk in chunks
    )
    assert chunks[-1]["usage"]["total_tokens"] == last["usage"]["total_tokens"] == 3
    without = chunks_of(
        await finished(Shim(connected=True), path, stream=True, stream_options={"continuous_usage_stats": True})
    )
    assert not [chunk for chunk in without if "usage" in chunk], "only together with include_usage"


@both
@pytest.mark.parametrize("shown", [True, False])
async def test_cached_tokens_in_the_usage(path: str, shown: bool) -> None:
    shim = Shim(connected=True, enable_prompt_tokens_details=shown)
    usage = (await finished(shim, path)).json()["usage"]
    assert usage["prompt_tokens_details"] == ({"cached_tokens": 1} if shown else None)


async def test_the_response_role() -> None:
    shim = Shim(connected=True, response_role="bot")
    assert (await finished(shim)).json()["choices"][0]["message"]["role"] == "bot"
    assert chunks_of(await finished(shim, stream=True))[0]["choices"][0]["delta"]["role"] == "bot"
    continued: Any = {"add_generation_prompt": False, "messages": [{"role": "narrator", "content": "Once"}]}
    body = (await finished(shim, **continued)).json()
    assert body["choices"][0]["message"]["role"] == "narrator", "as in vLLM: the last message's, which goes on"


@both
@pytest.mark.parametrize("name", ["whatever", "chat", "str", ""])
async def test_unknown_fields_may_be_ignored(path: str, name: str) -> None:
    shim = Shim(connected=True, ignore_unknown_fields=True)
    assert (await finished(shim, path, **{name: {"a": [1]}})).status_code == 200
    async with Shim(connected=True).http() as http:
        error = error_of(await http.post(path, json=BODIES[path] | {name: 1}), 400)
        assert error["message"] == f"unsupported parameter: {name}"


async def test_only_unknown_fields_are_ignored() -> None:
    async with Shim(connected=True, ignore_unknown_fields=True).http() as http:
        for body, param in (
            ({"temperature": 3, "other": 1}, "temperature"),
            ({"use_beam_search": True}, "use_beam_search"),
            ({"stream": True, "stream_options": {"other": 1, "include_usage": 1}}, "stream_options.include_usage"),
        ):
            assert error_of(await http.post(TEXT, json=BODIES[TEXT] | body), 400)["param"] == param


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_request_ids(path: str, stream: bool) -> None:
    """The header wins over the field; both become a part of the response's id."""
    prefix = "chatcmpl-" if path == CHAT else "cmpl-"

    async def id_of(headers: dict[str, str], **body: Any) -> str:
        response = await finished(Shim(connected=True), path, headers, stream=stream, **body)
        assert "x-request-id" not in response.headers, "only with --enable-request-id-headers"
        return str((chunks_of(response)[0] if stream else response.json())["id"])

    assert await id_of({}, request_id="body") == prefix + "body"
    assert await id_of({"X-Request-Id": "head"}, request_id="body") == prefix + "head"
    first, second = await id_of({}), await id_of({})
    assert first.startswith(prefix) and first != second


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_the_header_with_the_request_id(path: str, stream: bool) -> None:
    shim = Shim(connected=True, enable_request_id_headers=True)
    response = await finished(shim, path, {"x-request-id": "mine"}, stream=stream)
    assert response.headers["x-request-id"] == "mine"
    response = await finished(shim, path, request_id="field")
    assert response.headers["x-request-id"] == "field"
    response = await finished(shim, path)
    assert response.json()["id"].endswith("-" + response.headers["x-request-id"])


async def test_every_response_has_the_request_id() -> None:
    """Refusals as well: an operator looks for them by this id."""
    async with Shim(connected=True, enable_request_id_headers=True, api_key=("key",)).http() as http:
        key = {"authorization": "Bearer key"}
        for path, status in (("/health", 200), ("/v1/models", 401), ("/nothing", 401)):
            response = await http.get(path, headers={"x-request-id": "mine"})
            assert (response.status_code, response.headers["x-request-id"]) == (status, "mine")
        response = await http.post(TEXT, json={"prompt": 5}, headers=key | {"x-request-id": "mine"})
        assert (response.status_code, response.headers["x-request-id"]) == (400, "mine")
        response = await http.post(TEXT, json={"prompt": 5}, headers=key | {"x-request-id": "not valid"})
        assert response.status_code == 400 and len(response.headers["x-request-id"]) == 32
        assert len((await http.get("/health")).headers["x-request-id"]) == 32


@both
async def test_the_submits_have_the_request_id(shim: Shim, http: httpx.AsyncClient, path: str) -> None:
    answer = post(http, path, request_id="mine")
    submit = (await shim.sent()).submit
    assert submit.request_id == ("chatcmpl-mine" if path == CHAT else "cmpl-mine")
    shim.end(submit.choices[0].handle)
    await answer


async def test_bad_request_ids(http: httpx.AsyncClient) -> None:
    error = error_of(await http.post(TEXT, json=BODIES[TEXT] | {"request_id": "a\nb"}), 400)
    assert error["param"] == "request_id"
