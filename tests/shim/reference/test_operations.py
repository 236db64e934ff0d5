"""Every operation is a route, and what the routes about tokens and the server answer fits the document."""

import asyncio
from typing import Any

import pytest

from services.shim.reference.openapi import openapi
from services.shim.reference.operations import OPERATIONS
from services.shim.routes import PATHS
from tests.shim.harness import FACTS, LIMITS, Shim
from tests.shim.json_schema import faults, resolve
from tests.shim.tool_link import with_tools

DOCUMENT = openapi()
MESSAGES = [{"role": "user", "content": "Hi"}]
GENERATE = "/inference/v1/generate"
POSTS: list[tuple[str, dict[str, Any]]] = [
    ("/tokenize", {"prompt": "Hi", "return_token_strs": True}),
    ("/tokenize", {"messages": MESSAGES}),
    ("/detokenize", {"tokens": [5]}),
    ("/v1/chat/completions/render", {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions/render", {"prompt": ["Hi", "Ho"], "cache_salt": "a"}),
]
GENERATING: list[tuple[str, dict[str, Any]]] = [
    (GENERATE, {"token_ids": [5], "sampling_params": {"n": 1, "logit_bias": {"5": 1}}, "stream": False}),
    ("/v1/chat/completions/batch", {"messages": [MESSAGES]}),
    ("/invocations", {"messages": MESSAGES}),
    ("/invocations", {"prompt": "Hi"}),
]


def request_schema(path: str) -> Any:
    return DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def response_schema(path: str, method: str, status: int = 200) -> Any:
    response = DOCUMENT["paths"][path][method]["responses"][str(status)]
    return response["content"]["application/json"]["schema"]


def test_each_route_has_one_operation() -> None:
    assert sorted((one.path.path, one.path.method) for one in OPERATIONS) == sorted((p.path, p.method) for p in PATHS)


@pytest.mark.parametrize(("path", "body"), POSTS, ids=[f"{at}{path}" for at, (path, _) in enumerate(POSTS)])
async def test_answers_about_prompts(path: str, body: dict[str, Any]) -> None:
    assert faults(body, request_schema(path), DOCUMENT) == []
    assert faults({**body, "unheard_of": 1}, request_schema(path), DOCUMENT)
    async with with_tools().http() as http:
        response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert faults(response.json(), response_schema(path, "post"), DOCUMENT, closed=True) == []


@pytest.mark.parametrize(("path", "body"), GENERATING, ids=[f"{at}{path}" for at, (path, _) in enumerate(GENERATING)])
async def test_generated_answers(path: str, body: dict[str, Any]) -> None:
    assert faults(body, request_schema(path), DOCUMENT) == []
    assert faults({**body, "unheard_of": 1}, request_schema(path), DOCUMENT)
    shim = Shim(connected=True)
    async with shim.http() as http:
        answer = asyncio.create_task(http.post(path, json=body))
        (choice,) = (await shim.sent()).submit.choices
        shim.accept(choice.handle, [1])
        shim.event(choice.handle, 0, [7], "a")
        shim.end(choice.handle, prompt_tokens=1, output_tokens=1)
        found = (await answer).json()
    assert faults(found, response_schema(path, "post"), DOCUMENT, closed=True) == []


@pytest.mark.parametrize("path", ["/load", "/server_info", "/tokenizer_info"])
async def test_answers_about_the_server(path: str) -> None:
    async with with_tools().http() as http:
        response = await http.get(path)
    assert faults(response.json(), response_schema(path, "get"), DOCUMENT, closed=path == "/load") == []


def test_fields_of_the_object_are_in_it() -> None:
    """Names that are in the other place, or in none, break the schema."""
    good = {"token_ids": [5], "sampling_params": {"top_p": 0.5}}
    assert faults(good, request_schema(GENERATE), DOCUMENT) == []
    assert faults({**good, "sampling_params": None}, request_schema(GENERATE), DOCUMENT) == []
    for bad in (
        {"top_p": 0.5},
        {"sampling_params": {"top_p": 2}},
        {"sampling_params": {"model": "fake"}},
        {"user": "a"},
    ):
        assert faults({**good, **bad}, request_schema(GENERATE), DOCUMENT), bad


async def test_the_engines_limits_are_in_the_object() -> None:
    async with Shim(connected=True).http() as http:
        document = (await http.get("/openapi.json")).json()
    schema = resolve(request_schema(GENERATE)["$ref"], document)
    fields = schema["properties"]["sampling_params"]["anyOf"][0]["properties"]
    assert fields["n"]["anyOf"][0]["maximum"] == LIMITS.max_n
    assert fields["allowed_token_ids"]["anyOf"][0]["maxItems"] == FACTS.vocab_size
    batch = resolve(request_schema("/v1/chat/completions/batch")["$ref"], document)
    assert "maximum" not in batch["properties"]["n"]["anyOf"][0]


def test_a_server_that_ignores_unknown_fields_says_so() -> None:
    document = openapi(True)
    schema = resolve(request_schema(GENERATE)["$ref"], document)
    assert "additionalProperties" not in schema
    assert "additionalProperties" not in schema["properties"]["sampling_params"]["anyOf"][0]
