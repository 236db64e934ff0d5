"""/openapi.json: complete, consistent, and true: what it allows is accepted, and real answers fit it."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.pieces import REASONING, TOOL_ARGUMENTS, TOOL_CALL, TOOL_NAME
from services.shim.apis.all import APIS
from services.shim.apis.api import Api
from services.shim.apis.chat.api import CHAT_API
from services.shim.parsing import validate
from services.shim.reference.openapi import openapi
from services.shim.routes import PATHS, is_open
from tests.shim.apis.answers import logprobs
from tests.shim.apis.field_values import BASE, CHAT, TOOL, each_api, rows_of
from tests.shim.harness import FACTS, LIMITS, Shim
from tests.shim.json_schema import Json, faults, resolve

DOCUMENT = openapi()


def nested(value: Any) -> Iterator[Json]:
    """Yields every object of the document."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nested(one)


def request_schema(api: Api) -> Json:
    body = DOCUMENT["paths"][api.path.path]["post"]["requestBody"]
    return resolve(body["content"]["application/json"]["schema"]["$ref"], DOCUMENT)


def response_schema(path: str, method: str = "get", status: int = 200) -> Json:
    response = DOCUMENT["paths"][path][method]["responses"][str(status)]
    return dict(response["content"]["application/json"]["schema"])


async def test_the_served_document() -> None:
    async with Shim().http() as http:
        response = await http.get("/openapi.json")
        assert response.headers["content-type"] == "application/json"
        assert response.json() == DOCUMENT == json.loads(json.dumps(DOCUMENT))
    assert DOCUMENT["openapi"] == "3.1.0" and DOCUMENT["info"].keys() == {"title", "version"}


def test_every_reference_resolves() -> None:
    references = [one["$ref"] for one in nested(DOCUMENT) if "$ref" in one]
    assert len(references) > 10
    for reference in references:
        assert resolve(reference, DOCUMENT)


def test_no_schema_is_unused() -> None:
    used = {one["$ref"].rpartition("/")[2] for one in nested(DOCUMENT) if "$ref" in one}
    assert used == DOCUMENT["components"]["schemas"].keys()


def test_every_route_is_in_it() -> None:
    found = {(path, method.upper()) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert found == {(one.path.replace(":path", ""), one.method) for one in PATHS}


PARAMETERS = {
    "/v1/models/{model}": {("model", "path", True)},
    "/server_info": {("config_format", "query", False)},
}


def test_operations() -> None:
    """Each has a summary and responses with a description; parameters in the path are declared; keys where needed."""
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            assert operation["summary"]
            assert operation["responses"]
            for status, response in operation["responses"].items():
                assert 200 <= int(status) < 600 and response["description"]
            found = {(one["name"], one["in"], one["required"]) for one in operation.get("parameters", [])}
            assert found == PARAMETERS.get(path, set())
            assert ("security" in operation) != is_open(path)


@each_api
def test_every_field_is_in_it(api: Api) -> None:
    schema = request_schema(api)
    assert schema["properties"].keys() == api.request.model_fields.keys()
    assert schema["additionalProperties"] is False
    for name, field in schema["properties"].items():
        assert field["x-tandem"] in {"supported", "no-op", "refused"} and field["description"], name


def test_a_server_that_ignores_unknown_fields_says_so() -> None:
    schemas = openapi(True)["components"]["schemas"]
    for api in APIS:
        assert "additionalProperties" not in schemas[api.request.__name__]


async def test_the_server_with_unknown_fields() -> None:
    async with Shim(ignore_unknown_fields=True).http() as http:
        assert (await http.get("/openapi.json")).json() == openapi(True)


# What the schema cannot say: the engine's limits, and fields that depend on others.
BEYOND = {
    "n", "allowed_token_ids", "bad_words", "stop_token_ids", "logit_bias", "logprob_token_ids", "logprobs",
    "top_logprobs", "truncate_prompt_tokens", "chat_template_kwargs", "continue_final_message", "tool_choice",
    "function_call", "response_format", "structured_outputs", "guided_json", "guided_choice",
    "guided_whitespace_pattern", "prompt_logprobs", "max_tokens",
}  # fmt: skip


def as_json(value: Any) -> Any:
    """Returns the value as a client would send it; None if JSON has no such value."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except ValueError:
        return None


@each_api
def test_the_schema_agrees_with_the_checks(api: Api) -> None:
    """Every value that is accepted fits the schema; every one that is refused breaks it, but for other limits."""
    schema = request_schema(api)
    for name, good, bad in rows_of(api):
        for value in [*good, *([] if name in ("messages", "prompt") else [None])]:
            assert faults(BASE[api.path.path] | {name: value}, schema, DOCUMENT) == [], name
        broken = [value for value in bad if (sent := as_json(value)) is not None and breaks(api, name, sent)]
        assert len(broken) == sum(as_json(value) is not None for value in bad) or name in BEYOND, name
        assert broken or name in BEYOND


def breaks(api: Api, name: str, value: Any) -> bool:
    return bool(faults(BASE[api.path.path] | {name: value}, request_schema(api), DOCUMENT))


@each_api
def test_what_breaks_the_schema_is_refused(api: Api) -> None:
    for name, _, bad in rows_of(api):
        for value in bad:
            if as_json(value) is not None and breaks(api, name, value):
                with pytest.raises(TandemError):
                    validate(api.request, BASE[api.path.path] | {name: value}, FACTS)


def test_the_check_itself_finds_faults() -> None:
    schema = request_schema(CHAT_API)
    for body in (
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        {"messages": [{"content": "a"}]},
        {"messages": []},
        {"messages": [{"role": "user"}], "other": 1},
        {},
    ):
        assert faults(body, schema, DOCUMENT)
    assert faults({"id": "x"}, response_schema("/v1/models"), DOCUMENT)


@each_api
@pytest.mark.parametrize("shown", [True, False])
async def test_real_answers_fit_the_schema(api: Api, shown: bool) -> None:
    """Every key of a response is in its schema, and every required key in the response."""
    more: Json = {"return_token_ids": shown, "return_effective_parameters": shown, "n": 2}
    more |= {"logprobs": True, "top_logprobs": 1} if api is CHAT_API else {"logprobs": 1}
    shim = Shim(connected=True, enable_prompt_tokens_details=shown)
    async with shim.http() as http:
        answer = asyncio.create_task(http.post(api.path.path, json=BASE[api.path.path] | (more if shown else {})))
        for number, choice in enumerate((await shim.sent()).submit.choices):
            shim.accept(choice.handle, [1, 2], seed=5, sampling=pb.SamplingParams(max_tokens=3) if shown else None)
            shim.event(choice.handle, 0, [7], "a", logprobs=[logprobs("a", -1.0, ("b", -2.0))] if shown else ())
            stop: dict[str, Any] = [{"stop_string": "a"}, {"stop_token_id": 7}][number]
            shim.end(choice.handle, prompt_tokens=2, output_tokens=1, **stop)
        body = (await answer).json()
    assert faults(body, response_schema(api.path.path, "post"), DOCUMENT, closed=True) == []
    assert ("effective_parameters" in body["choices"][0]) == shown


@pytest.mark.parametrize("asked", [{"tools": [TOOL]}, {"functions": [TOOL["function"]]}], ids=["tools", "functions"])
async def test_an_answer_with_reasoning_and_a_call_fits_the_schema(asked: Json) -> None:
    shim = Shim(connected=True)
    kinds = bytes([REASONING, TOOL_CALL, TOOL_NAME, TOOL_ARGUMENTS])
    async with shim.http() as http:
        answer = asyncio.create_task(http.post(CHAT_API.path.path, json=CHAT | asked))
        (choice,) = (await shim.sent()).submit.choices
        shim.event(choice.handle, 0, [7], "hm", "call_1", "f", "{}", kinds=kinds)
        shim.end(choice.handle)
        body = (await answer).json()
    assert body["choices"][0]["finish_reason"] in {"tool_calls", "function_call"}
    assert faults(body, response_schema(CHAT_API.path.path, "post"), DOCUMENT, closed=True) == []


@each_api
async def test_real_errors_fit_the_schema(api: Api) -> None:
    async with Shim(connected=True).http() as http:
        for change, status in (({"n": 0}, 400), ({"model": "other"}, 404)):
            body: Json = BASE[api.path.path] | change
            response = await http.post(api.path.path, json=body)
            assert response.status_code == status
            assert faults(response.json(), response_schema(api.path.path, "post", status), DOCUMENT, closed=True) == []


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/{model}", "/version", "/openapi.json"])
async def test_other_answers_fit_the_schema(path: str) -> None:
    async with Shim(connected=True).http() as http:
        response = await http.get(path.replace("{model}", "fake"))
    assert response.status_code == 200
    assert faults(response.json(), response_schema(path), DOCUMENT, closed=path != "/openapi.json") == []


async def test_a_running_servers_document_has_the_limits_of_its_engine() -> None:
    async with Shim(connected=True).http() as http:
        schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]
    for api in APIS:
        properties = schemas[api.request.__name__]["properties"].items()
        fields = {name: field["anyOf"][0] for name, field in properties if "anyOf" in field}
        assert fields["n"]["maximum"] == LIMITS.max_n
        assert fields[api.request.logprobs_field]["maximum"] == LIMITS.max_logprobs
        assert fields["stop_token_ids"]["maxItems"] == LIMITS.max_stop_token_ids
        assert fields["logit_bias"]["maxProperties"] == LIMITS.max_logit_bias
        assert fields["bad_words"]["maxItems"] == LIMITS.max_bad_words
        assert fields["logprob_token_ids"]["maxItems"] == LIMITS.max_logprob_token_ids
        assert fields["allowed_token_ids"]["maxItems"] == FACTS.vocab_size


def test_the_page_names_the_limits_of_the_engine() -> None:
    names = ("max_n", "max_stop_token_ids", "max_logprob_token_ids", "max_logit_bias", "max_bad_words")
    assert [getattr(LIMITS, name) for name in names] == [128, 128, 128, 1024, 1024], "page_text.py names these"


def test_a_stream_has_no_schema_that_its_events_would_break() -> None:
    content = DOCUMENT["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert content["text/event-stream"] == {} and "schema" in content["application/json"]
