"""/tokenize, /detokenize and the render routes with a real vocabulary: as prompts, refused by name, in short steps."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from services.rpc.generated import text_pb2
from services.tokenizer.prompt_encoder import PromptEncoder
from tests.shim.harness import FACTS, Shim, error_of
from tests.shim.longest_step import longest_step
from tests.shim.tool_link import TEMPLATE, VOCABULARY, ToolLink, with_tools

MESSAGES = [{"role": "user", "content": "Hi<|im_end|>"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
RENDERS = {"/v1/chat/completions/render": {"messages": MESSAGES}, "/v1/completions/render": {"prompt": "Hi"}}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with with_tools(ToolLink(max_model_len=4096)).http() as client:
        yield client


async def answer(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def ids_of(text: str) -> list[int]:
    return VOCABULARY.encode(text, add_special_tokens=False)


async def test_a_text(http: httpx.AsyncClient) -> None:
    ids = ids_of("Which way to Köln?")
    found = await answer(http, "/tokenize", prompt="Which way to Köln?")
    assert found == {"count": len(ids), "max_model_len": FACTS.max_model_len, "tokens": ids, "token_strs": None}
    found = await answer(
        http, "/tokenize", prompt="Which way to Köln?", return_token_strs=True, add_special_tokens=False
    )
    assert found["token_strs"] == [VOCABULARY.tokenizer.id_to_token(one) for one in ids]
    assert await answer(http, "/tokenize", prompt="", return_token_strs=True) == {
        "count": 0, "max_model_len": FACTS.max_model_len, "tokens": [], "token_strs": []
    }  # fmt: skip


async def test_a_chat_is_what_its_prompt_would_be(http: httpx.AsyncClient) -> None:
    """Control tokens in content are text, also here."""
    found = await answer(http, "/tokenize", messages=MESSAGES)
    rendered = await answer(http, "/v1/chat/completions/render", messages=MESSAGES)
    assert found["tokens"] == rendered["token_ids"] and found["tokens"].count(2) == 1
    for more in (
        {"add_generation_prompt": False},
        {"add_generation_prompt": False, "continue_final_message": True},
        {"add_special_tokens": True, "tools": [TOOL], "documents": [{"text": "a"}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ):
        body = {"messages": MESSAGES, **more}
        rendered = await answer(http, "/v1/chat/completions/render", **body)
        assert (await answer(http, "/tokenize", **body))["tokens"] == rendered["token_ids"], more


async def test_ids_become_text(http: httpx.AsyncClient) -> None:
    assert await answer(http, "/detokenize", tokens=[1, *ids_of('Hi\n"é"')]) == {"prompt": '<|im_start|>Hi\n"é"'}
    assert await answer(http, "/detokenize", tokens=[], model="fake") == {"prompt": ""}
    error = error_of(await http.post("/detokenize", json={"tokens": [2**31]}), 400)
    assert (error["message"], error["param"]) == (f"tokens: {2**31} is not in the vocabulary", "tokens")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "messages"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": [1]}, "prompt"),
        ("/tokenize", {"prompt": "a", "temperature": 1}, "temperature"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": MESSAGES, "prompt": "a"}, "prompt"),
        ("/tokenize", {"messages": MESSAGES, "max_tokens": 5}, "max_tokens"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages.0.content"),
        ("/tokenize", {"messages": MESSAGES, "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "{{ 1 }}"}, "chat_template"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens.1"),
        ("/detokenize", {"tokens": [1], "stream": True}, "stream"),
        ("/v1/completions/render", {}, "prompt"),
        ("/v1/chat/completions/render", {"messages": MESSAGES, "temperature": 3}, "temperature"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(http: httpx.AsyncClient, path: str, body: Any, param: str) -> None:
    assert error_of(await http.post(path, json=body), 400)["param"] == param


async def test_ignored_fields_and_another_model() -> None:
    async with with_tools(ignore_unknown_fields=True).http() as http:
        assert (await answer(http, "/tokenize", prompt="a", temperature=1, other=2))["count"] == 1
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
            assert error_of(await http.post(path, json=body | {"model": "other"}), 404)["code"] == "model_not_found"


async def test_a_text_may_be_longer_than_the_context() -> None:
    """A prompt may not: the render routes say so."""
    async with with_tools(ToolLink(max_model_len=64)).http() as http:
        found = await answer(http, "/tokenize", prompt="Hello " * 100)
        assert found["count"] > found["max_model_len"]
        found = await answer(http, "/tokenize", messages=[{"role": "user", "content": "Hello " * 100}])
        assert found["count"] > found["max_model_len"]
        for path, field in (("/v1/completions/render", "prompt"), ("/v1/chat/completions/render", "messages")):
            body: Any = (
                {"prompt": "Hello " * 100}
                if field == "prompt"
                else {"messages": [{"role": "user", "content": "Hello " * 100}]}
            )
            error = error_of(await http.post(path, json=body), 400)
            assert (error["code"], error["param"]) == ("context_length_exceeded", field)


async def test_the_configuration() -> None:
    async with with_tools().http() as http:
        response = await http.get("/tokenizer_info")
    assert response.headers["content-type"] == "application/json"
    assert response.json()["chat_template"] == TEMPLATE and response.json()["tokenizer_class"]


async def test_without_a_tokenizer() -> None:
    shim = Shim(connected=True)
    async with shim.http() as http:
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]}), *RENDERS.items()):
            response = await http.post(path, json=body)
            assert error_of(response, 503)["type"] == "server_error" and response.headers["retry-after"] == "2"
        error_of(await http.get("/tokenizer_info"), 503)


async def test_large_requests_leave_the_event_loop_free() -> None:
    """300,000 tokens, and the text of them, in pieces. Read from one message, they took 40 ms in one step."""
    content = "Hello, wörld! " * 27_000
    shim = with_tools()
    await shim.preparer.start()
    try:
        async with shim.http() as http:
            body = json.dumps({"prompt": content, "return_token_strs": True}).encode()
            async with longest_step() as step:
                tokenized = await http.post("/tokenize", content=body)
            found = tokenized.json()
            assert found["count"] == len(found["tokens"]) == len(found["token_strs"]) > 200_000
            async with longest_step() as other:
                decoded = await http.post("/detokenize", content=json.dumps({"tokens": found["tokens"]}).encode())
            assert decoded.json()["prompt"] == content
            assert shim.in_progress.num_bytes == 0
        # The tokenizer's steps are among these: it is in this process.
        assert step.seconds < 0.03 and other.seconds < 0.03
    finally:
        await shim.preparer.close()


async def test_a_client_that_hangs_up_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def endless(self: PromptEncoder, submit: text_pb2.TextSubmit) -> list[int]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    monkeypatch.setattr(PromptEncoder, "encode", endless)
    messages = [{"type": "http.request", "body": b'{"prompt": "a"}'}, {"type": "http.disconnect"}]
    statuses = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    headers = [(b"host", b"test"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/tokenize", "headers": headers, "query_string": b""}
    shim = with_tools()
    async with asyncio.timeout(10):
        await shim.app(scope, receive, send)
        await ended.wait()
    assert statuses[0] == 499 and shim.in_progress.num_requests == 0


async def test_these_requests_count_against_the_limit() -> None:
    shim = with_tools(max_concurrent_requests=1)
    async with shim.http() as http:
        with shim.in_progress.request():
            for path in ("/tokenize", "/detokenize", "/invocations", "/inference/v1/generate", *RENDERS):
                error_of(await http.post(path, json={}), 429)
            assert (await http.get("/tokenizer_info")).status_code == 200
