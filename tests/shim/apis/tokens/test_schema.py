"""/inference/v1/generate in one process: its fields, its answers and streams, its errors."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from services.rpc.columns import unpack_u32
from services.rpc.errors import invalid, too_long
from services.rpc.generated import text_pb2
from services.shim.apis.fields import kind_of
from services.shim.apis.tokens.schema import TOKENS_FORM, TokensRequest
from tests.shim.apis.field_values import COMMON, TEXT_ONLY, Row
from tests.shim.harness import FACTS, LIMITS, Shim, error_of

PATH = "/inference/v1/generate"
Json = dict[str, Any]
BODY: Json = {"token_ids": [5, 6], "sampling_params": {}}
OUTER: list[Row] = [
    ("token_ids", [[0], [5, 2**32 - 1]], [[], "a", 5, {}, [-1], [2**32], [0.5], ["a"]]),
    ("features", [None], [{}, 5]),
    ("assistant_tokens_mask", [None, [0, 1]], [[2], "a", [True]]),
    ("token_offsets", [None, [[0, 2], [2, 3]]], [[[0]], "a", [[0, 1, 2]], [[-1, 2]]]),
    ("sampling_params", [{}, None], [5, "a", []]),
    ("stream_options", [None], [{}, 5]),  # needs stream
    *(row for row in COMMON if row[0] in TOKENS_FORM.names),
]
OWN_INNER: list[Row] = [
    ("prompt_logprob_token_ids", [None], [[1]]),
    ("prompt_logprob_start", [None], [0]),
    ("trace_decode_token_ids", [None], [[1]]),
    ("extra_args", [{}], [{"a": 1}, 5]),
    ("skip_reading_prefix_cache", [False], [True, 0]),
    ("detokenize", [True, False], [1, "yes"]),
    ("flat_logprobs", [True, False], [1, "yes"]),
    ("output_kind", [0, 1, 2], [-1, 3, True, "0"]),
    ("skip_clone", [True, False], [1]),
    ("routed_experts_prompt_start", [0, 7], [-1, 2**31, "0"]),
]
INNER = [row for row in [*COMMON, *TEXT_ONLY] if row[0] in TOKENS_FORM.inner_names - {name for name, _, _ in OWN_INNER}]
ROWS = [*((row, False) for row in OUTER), *((row, True) for row in [*INNER, *OWN_INNER])]


def post(http: httpx.AsyncClient, **body: Any) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(http.post(PATH, json=BODY | body))


async def submit_of(shim: Shim, http: httpx.AsyncClient, **body: Any) -> text_pb2.TextSubmit:
    """Returns the submit of a request that is accepted. Its client hangs up then."""
    answer = post(http, **body)
    sent = asyncio.create_task(shim.sent())
    await asyncio.wait({answer, sent}, return_when=asyncio.FIRST_COMPLETED)
    if not sent.done():
        sent.cancel()
        raise AssertionError((await answer).text)
    answer.cancel()
    await asyncio.gather(answer, return_exceptions=True)
    submit = sent.result().submit
    for choice in submit.choices:
        assert (await shim.sent()).abort.handle == choice.handle
    return submit


def test_every_field_has_its_values_here() -> None:
    assert {row[0] for row in OUTER} == TOKENS_FORM.names | {"sampling_params"}
    assert {row[0] for row in [*INNER, *OWN_INNER]} == TOKENS_FORM.inner_names
    assert TOKENS_FORM.names | TOKENS_FORM.inner_names <= TokensRequest.model_fields.keys()
    assert not TOKENS_FORM.names & TOKENS_FORM.inner_names


@pytest.mark.parametrize(("row", "inner"), ROWS, ids=[row[0] for row, _ in ROWS])
async def test_values_of_each_field(shim: Shim, http: httpx.AsyncClient, row: Row, inner: bool) -> None:
    try:
        for value in row[1]:
            await submit_of(shim, http, **accepted(row[0], value, inner))
        for value in row[2]:
            await check_refused(http, row[0], value, inner)
    finally:
        await shim.preparer.close()  # some values are read in child processes


def accepted(name: str, value: Any, inner: bool) -> Json:
    """Returns the fields of a body with this value, and with what it needs."""
    if name == "model":
        return {"model": "fake"}
    if name == "token_ids":
        return {"token_ids": value[:1]}
    if not inner:
        return {name: value}
    return {"sampling_params": {name: value} | ({"logprobs": 1} if name == "logprob_token_ids" else {})}


async def check_refused(http: httpx.AsyncClient, name: str, value: Any, inner: bool) -> None:
    try:
        content = json.dumps(BODY | ({"sampling_params": {name: value}} if inner else {name: value}), allow_nan=False)
    except ValueError:
        return  # JSON has no such value
    param = error_of(await http.post(PATH, content=content), 400)["param"]
    path = f"sampling_params.{name}" if inner else name
    assert param == path or param.startswith(f"{path}."), (value, param)


async def test_a_submit(shim: Shim, http: httpx.AsyncClient) -> None:
    params = {"n": 2, "temperature": 0.5, "max_tokens": 7, "stop": ["a"], "logprobs": 3, "seed": 9}
    submit = await submit_of(shim, http, sampling_params=params, cache_salt="salt", priority=3)
    assert unpack_u32(submit.prompt_token_ids) == [5, 6] and len(submit.choices) == 2
    assert submit.output.token_ids_only and list(submit.output.stop) == ["a"]
    assert (submit.sampling.temperature, submit.sampling.max_tokens, submit.sampling.logprobs) == (0.5, 7, 3)
    assert (submit.seed, submit.cache_salt, submit.priority) == (9, "salt", 3)
    plain = await submit_of(shim, http)
    assert not plain.sampling.HasField("max_tokens"), "as long as the context leaves, as vLLM's"


async def test_a_form_passes_as_it_was_written(shim: Shim, http: httpx.AsyncClient) -> None:
    text = '{"b": 1.0, "a": {"x":  "\\u00e9"}}'
    content = f'{{"token_ids": [5], "sampling_params": {{"structured_outputs": {{"json": {text}}}}}}}'
    answer = asyncio.create_task(http.post(PATH, content=content))
    submit = (await shim.sent()).submit
    shim.end(submit.choices[0].handle)
    await answer
    assert submit.output.structured.json_schema.decode() == text


async def test_errors_name_the_field_where_it_is(shim: Shim, http: httpx.AsyncClient) -> None:
    for error, param in (
        (invalid("wrong", "logit_bias"), "sampling_params.logit_bias"),
        (invalid("wrong", "structured_outputs.json"), "sampling_params.structured_outputs.json"),
        (too_long(70, 64), "token_ids"),
    ):
        answer = post(http)
        shim.fail((await shim.sent()).submit.choices[0].handle, error)
        assert error_of(await answer, 400)["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a"}, "prompt"),
        ({"temperature": 1}, "temperature"),
        ({"user": "me"}, "user"),
        ({"sampling_params": {"model": "fake"}}, "sampling_params.model"),
        ({"sampling_params": {"guided_json": {}}}, "sampling_params.guided_json"),
        ({"sampling_params": {"other": 1}}, "sampling_params.other"),
        ({"sampling_params": {"n": LIMITS.max_n + 1}}, "sampling_params.n"),
        ({"sampling_params": {"min_tokens": 5, "max_tokens": 4}}, "sampling_params.min_tokens"),
        ({"sampling_params": {"logprob_token_ids": [1]}}, "sampling_params.logprob_token_ids"),
        ({"sampling_params": {"detokenize": False, "stop": ["a"]}}, "sampling_params.stop"),
        ({"stream_options": {}}, "stream_options"),
        ({"token_ids": list(range(FACTS.max_model_len))}, "token_ids"),
    ],
)
async def test_what_is_wrong_is_named(http: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    assert error_of(await http.post(PATH, json=BODY | body), 400)["param"] == param


async def test_what_is_missing_is_named(http: httpx.AsyncClient) -> None:
    error = error_of(await http.post(PATH, json={}), 400)
    assert (error["message"], error["param"]) == ("missing parameter: token_ids", "token_ids")
    error = error_of(await http.post(PATH, json=BODY | {"sampling_params": {"prompt_logprob_start": 1}}), 400)
    assert "prompt_logprob_start is not supported by this server" in error["message"]
    body = BODY | {"stream": True, "sampling_params": {"prompt_logprobs": 1}}
    assert error_of(await http.post(PATH, json=body), 400)["param"] == "sampling_params.prompt_logprobs"


async def test_unknown_fields_may_be_ignored() -> None:
    shim = Shim(connected=True, ignore_unknown_fields=True)
    async with shim.http() as http:
        submit = await submit_of(shim, http, prompt="a", sampling_params={"other": 1, "top_k": 3})
    assert submit.sampling.top_k == 3


def test_kinds() -> None:
    """What vLLM has and tandem lacks is refused, never a no-op."""
    fields = TokensRequest.model_fields
    kinds = {name: kind_of(fields[name]) for name in TOKENS_FORM.names | TOKENS_FORM.inner_names}
    assert {name for name, kind in kinds.items() if kind == "no-op"} == {
        "assistant_tokens_mask", "token_offsets", "detokenize", "flat_logprobs", "output_kind", "skip_clone",
        "routed_experts_prompt_start", "stream_interval",
    }  # fmt: skip
