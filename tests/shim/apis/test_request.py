"""The fields that all APIs share, and rules for all fields: limits, no-ops, what is refused, null, unknown names."""

import asyncio
from typing import Any

import msgspec
import pytest

from services.rpc.errors import TandemError
from services.shim.apis.all import APIS
from services.shim.apis.api import Api
from services.shim.apis.chat.api import CHAT_API
from services.shim.apis.completions.api import COMPLETIONS_API
from services.shim.apis.fields import kind_of
from services.shim.parsing import validate
from tests.shim.apis.field_values import (
    BASE,
    CHAT,
    TEXT,
    Json,
    Row,
    each_api,
    fields_of_kind,
    refused,
    refused_body,
    rows_of,
    submits,
    submits_of_text,
)
from tests.shim.harness import FACTS, Shim

ALL = [(api, row) for api in APIS for row in rows_of(api)]


def names(rows: list[tuple[Api, Row]]) -> list[str]:
    return [f"{api.request.__name__}-{row[0]}" for api, row in rows]


@pytest.mark.parametrize(("api", "row"), ALL, ids=names(ALL))
def test_each_field_and_its_limits(api: Api, row: Row) -> None:
    field, good, bad = row
    for value in good:
        validate(api.request, BASE[api.path.path] | {field: value}, FACTS)
    for value in bad:
        error = refused(api, {field: value})
        assert error.param == field or error.param.startswith(f"{field}."), f"{value!r}: {error.param}: {error.message}"
        assert field in error.message


@each_api
def test_every_field_has_a_row_here(api: Api) -> None:
    tested = [row[0] for row in rows_of(api)]
    assert len(tested) == len(set(tested))
    assert set(api.request.model_fields) == {*tested, "stream_options"}


NO_OPS = list(fields_of_kind("no-op"))


@pytest.mark.parametrize(("api", "row"), NO_OPS, ids=names(NO_OPS))
def test_a_no_op_changes_nothing(api: Api, row: Row) -> None:
    """The tokenizer gets the same bytes, and the response has the same options, with and without the field."""
    plain = [submit.SerializeToString(deterministic=True) for submit in submits(api, {})]
    assert row[1], "a no-op has values that pass"
    for value in row[1]:
        assert [submit.SerializeToString(deterministic=True) for submit in submits(api, {row[0]: value})] == plain


def test_the_no_ops_of_the_issue_are_accepted() -> None:
    """Each of them, whatever its declaration says, changes nothing at this value."""
    common: Json = {
        "user": "u", "session_id": "s", "logit_bias": {}, "bad_words": [], "echo": False, "best_of": 1,
        "use_beam_search": False, "stop": [], "stop_token_ids": [],
    }  # fmt: skip
    chat: Json = {
        "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "prompt_cache_key": "k",
        "safety_identifier": "s", "modalities": ["text"], "prediction": {"type": "content", "content": "x"},
        "parallel_tool_calls": True, "tools": [], "functions": [], "include_reasoning": True, "tool_choice": "none",
    }  # fmt: skip
    for api, fields in ((CHAT_API, common | chat), (COMPLETIONS_API, common)):
        assert submits(api, fields) == submits(api, {})


REFUSED = list(fields_of_kind("refused"))


@pytest.mark.parametrize(("api", "row"), REFUSED, ids=names(REFUSED))
def test_what_is_missing_is_refused_by_name(api: Api, row: Row) -> None:
    field, good, bad = row
    plain = submits(api, {})
    for value in good:
        assert submits(api, {field: value}) == plain
    assert bad
    for value in bad:
        error = refused(api, {field: value})
        assert error.param == field
        assert error.message.startswith(f"{field} is not supported by this server: ")


@each_api
def test_every_field_may_be_null(api: Api) -> None:
    """Null means absent, as some clients send every field that they know."""
    required = {name for name, field in api.request.model_fields.items() if field.is_required()}
    assert required in ({"messages"}, {"prompt"})
    nulls = dict.fromkeys(set(api.request.model_fields) - required)
    assert submits(api, nulls) == submits(api, {})
    (name,) = required
    error = refused_body(api, {key: value for key, value in {name: None}.items() if value is not None})
    assert error.message == f"missing parameter: {name}"


@each_api
async def test_null_over_http(api: Api) -> None:
    required = {name for name, field in api.request.model_fields.items() if field.is_required()}
    body = dict.fromkeys(api.request.model_fields) | BASE[api.path.path]
    shim = Shim(connected=True)
    async with shim.http() as http:
        answer = asyncio.create_task(http.post(api.path.path, json=body))
        submit = (await shim.sent()).submit
        shim.end(submit.choices[0].handle)
        assert (await answer).status_code == 200
        response = await http.post(api.path.path, json=dict.fromkeys(required))
        assert response.json()["error"]["message"] == f"missing parameter: {required.pop()}"


@each_api
def test_every_field_may_have_its_default(api: Api) -> None:
    defaults = {
        name: field.default
        for name, field in api.request.model_fields.items()
        if not field.is_required() and field.default is not None
    }
    assert len(defaults) > 20
    assert submits(api, defaults) == submits(api, {})


@each_api
@pytest.mark.parametrize("name", ["guided_xml", "top-p", "str", "int", "", "Temperature", "a.b", "a\nb"])
def test_unknown_fields_are_refused_by_name(api: Api, name: str) -> None:
    error = refused(api, {name: 1})
    assert (error.message, error.param) == (f"unsupported parameter: {name}", name)


def test_fields_of_one_api_are_unknown_to_the_other() -> None:
    assert refused(COMPLETIONS_API, {"messages": []}).message == "unsupported parameter: messages"
    assert refused(CHAT_API, {"prompt": "Hi"}).message == "unsupported parameter: prompt"


@pytest.mark.parametrize("api", APIS, ids=[api.path.path for api in APIS])
@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"stop": ["a", ""]}, "stop.1"),
        ({"stop": ["a", 5]}, "stop.1"),
        ({"stop": ["a", "b" * 1025]}, "stop.1"),
        ({"bad_words": ["a", ""]}, "bad_words.1"),
        ({"bad_words": ["a", 5]}, "bad_words.1"),
        ({"bad_words": ["a", "b" * 1025]}, "bad_words.1"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids.1"),
        ({"stop_token_ids": [1, "1"]}, "stop_token_ids.1"),
        ({"allowed_token_ids": [1, 2**32]}, "allowed_token_ids.1"),
        ({"allowed_token_ids": [1, True]}, "allowed_token_ids.1"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": 1}}, "stream_options.continuous_usage_stats"),
        ({"stream": True, "stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
        ({"stream": True, "stream_options": True}, "stream_options"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "text", "json_schema": {}}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "structural_tag", "format": {}}}, "response_format.format"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice.1"),
        ({"structured_outputs": {"structural_tag": {"format": {}}}}, "structured_outputs.structural_tag.format"),
        ({"structured_outputs": {"xml": 5}}, "structured_outputs.xml"),
        ({"guided_choice": ["a", 5]}, "guided_choice.1"),
        ({"structural_tag": {"structures": [{"begin": "a"}], "triggers": ["a"]}}, "structural_tag.structures.0.schema"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
    ],
)
def test_paths_into_fields(api: Api, change: Json, param: str) -> None:
    assert refused(api, change).param == param


@each_api
def test_stream_options(api: Api) -> None:
    """Null is false; include_obfuscation changes nothing."""

    def checked(options: Json) -> Any:
        return validate(api.request, BASE[api.path.path] | {"stream": True, "stream_options": options}, FACTS)

    assert (checked({}).include_usage, checked({}).continuous_usage) == (False, False)
    nulls: Json = {"include_usage": None, "continuous_usage_stats": None, "include_obfuscation": None}
    assert (checked(nulls).include_usage, checked(nulls).continuous_usage) == (False, False)
    assert not checked({"continuous_usage_stats": True}).continuous_usage
    both = checked({"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": True})
    assert (both.include_usage, both.continuous_usage) == (True, True)


@each_api
def test_logprobs_of_given_ids(api: Api) -> None:
    limit = FACTS.limits.max_logprob_token_ids
    needed: Json = {"logprobs": True} if api is CHAT_API else {"logprobs": 0}
    submits(api, needed | {"logprob_token_ids": [1] * limit})
    error = refused(api, needed | {"logprob_token_ids": [1] * (limit + 1)})
    assert (error.param, error.message) == (
        "logprob_token_ids",
        f"logprob_token_ids: {limit + 1} items, but at most {limit}",
    )
    assert refused(api, needed | {"logprob_token_ids": [-1]}).param == "logprob_token_ids.0"


@each_api
@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 400, b"1" + b"0" * 5000, b"0.1e+310"])
def test_a_number_beyond_every_type_is_refused(api: Api, number: bytes) -> None:
    """JSON can carry it, but as a float it is infinite."""
    base = msgspec.json.encode(BASE[api.path.path])[:-1]
    for name in (b"temperature", b"n", b"seed", b"length_penalty", b"logit_bias"):
        value = b'{"1":' + number + b"}" if name == b"logit_bias" else number
        with pytest.raises(TandemError) as caught:
            submits_of_text(api, base + b',"' + name + b'":' + value + b"}")
        assert caught.value.code == "INVALID_ARGUMENT"


def test_kinds_are_known() -> None:
    for api in APIS:
        assert {kind_of(field) for field in api.request.model_fields.values()} == {"supported", "no-op", "refused"}


def test_the_smallest_requests() -> None:
    assert refused_body(CHAT_API, {}).message == "missing parameter: messages"
    assert refused_body(COMPLETIONS_API, {}).message == "missing parameter: prompt"
    assert len(submits(CHAT_API, CHAT)) == len(submits(COMPLETIONS_API, TEXT)) == 1
