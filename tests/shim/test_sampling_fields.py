"""The sampling fields have the same names and ranges in the shim's schema, on the wire and in the engine core."""

import math
from typing import Any

import pytest

from engine_core.request_check import RequestRefused, check_sampling
from engine_core.step_plan import SamplingParams
from services.engine.codec import sampling_params
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.shim.parsing import validate
from services.shim.schema import ChatRequest, CompletionRequest, GenerationRequest
from services.shim.translate import chat_submit, completion_submits
from tests.fakes import make_facts
from tests.shim.harness import LIMITS

WIRE = set(pb.SamplingParams.DESCRIPTOR.fields_by_name)
# Fields of the schema that are no sampling parameter: where each one goes instead.
ELSEWHERE = {
    "model": "the response; the engine serves one model",
    "stream": "the response",
    "stream_options": "the response",
    "return_token_ids": "the response",
    "n": "TextSubmit.choices, one each",
    "seed": "TextSubmit.seed, which the engine replaces if it is absent",
    "stop": "TextSubmit.stop: the tokenizer looks for stop strings",
    "include_stop_str_in_output": "TextSubmit, for the tokenizer",
    "skip_special_tokens": "TextSubmit, for the tokenizer",
    "cache_salt": "TextSubmit.cache_salt",
    "priority": "TextSubmit.priority",
}
ELSEWHERE_CHAT = {
    "messages": "the prompt",
    "tools": "the prompt",
    "tool_choice": "the prompt",
    "chat_template_kwargs": "the prompt",
    "add_generation_prompt": "the prompt",
    "continue_final_message": "the prompt",
    "response_format": "only text is accepted",
    "max_completion_tokens": "OpenAI's newer name of max_tokens",
    "top_logprobs": "SamplingParams.logprobs; in chat, logprobs is a boolean",
}
ELSEWHERE_COMPLETION = {"prompt": "the prompt", "add_special_tokens": "the prompt"}
# One value of each field, none the default.
SET: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.5, "presence_penalty": 0.5, "frequency_penalty": 0.5,
    "repetition_penalty": 1.5, "max_tokens": 9, "min_tokens": 2, "ignore_eos": True, "stop_token_ids": [3],
    "logprobs": 4,
}  # fmt: skip


def test_the_schema_has_every_field_of_the_wire() -> None:
    assert set(CompletionRequest.model_fields) - ELSEWHERE.keys() - ELSEWHERE_COMPLETION.keys() == WIRE
    assert set(ChatRequest.model_fields) - ELSEWHERE.keys() - ELSEWHERE_CHAT.keys() == WIRE


def test_the_core_has_every_field_of_the_wire() -> None:
    """But for ignore_eos, which becomes an empty set of eos tokens."""
    assert set(SamplingParams.__struct_fields__) == WIRE - {"ignore_eos"} | {"eos_token_ids"}


def test_every_field_reaches_the_core() -> None:
    """From the schema over the submit; the values are exact in float32."""
    assert SET.keys() == WIRE
    text = validate(CompletionRequest, {"prompt": "a", **SET}, LIMITS)
    chat_body = {"messages": [{"role": "user", "content": "a"}], **SET, "logprobs": True, "top_logprobs": 4}
    chat = validate(ChatRequest, chat_body, LIMITS)
    (text_submit,) = completion_submits(text, "r", lambda: 1)
    for submit in (text_submit, chat_submit(chat, chat_body, "r", lambda: 1)):
        core = sampling_params(submit.sampling, make_facts(eos_token_ids=(7,)), num_prompt_tokens=1)
        expected = {**SET, "stop_token_ids": (3,), "eos_token_ids": ()}
        del expected["ignore_eos"]
        assert {name: getattr(core, name) for name in SamplingParams.__struct_fields__} == expected


# The field, its lowest and its highest value. Differences between schema and core are in tests of their own below.
RANGES: list[tuple[str, Any, Any]] = [
    ("temperature", 0.0, 2.0),
    ("top_p", math.ulp(0.0), 1.0),  # 0 is refused
    ("top_k", 0, 2**31 - 1),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", math.ulp(0.0), 1e4),  # 0 is refused
    ("max_tokens", 1, 2**31 - 1),
    ("min_tokens", 0, 9),  # max_tokens below
    ("logprobs", 0, LIMITS.max_logprobs),
]
LOWER_IN_THE_SCHEMA = {"top_k"}  # -1 is vLLM's word for all, which is 0 in the core
HIGHER_IN_THE_CORE = {"max_tokens"}  # limited by the model's length there, and here by what the wire carries


def schema_accepts(**fields: Any) -> bool:
    try:
        validate(CompletionRequest, {"prompt": "a", "max_tokens": 9, **fields}, LIMITS)
    except TandemError as error:
        assert error.param in fields
        return False
    return True


def core_accepts(**fields: Any) -> bool:
    try:
        check_sampling(SamplingParams(**{"max_tokens": 9, **fields}), make_facts())
    except RequestRefused as refused:
        assert refused.param in fields
        return False
    return True


def before(value: Any) -> Any:
    return value - 1 if isinstance(value, int) else math.nextafter(value, -math.inf)


def after(value: Any) -> Any:
    return value + 1 if isinstance(value, int) else math.nextafter(value, math.inf)


@pytest.mark.parametrize(("name", "low", "high"), RANGES, ids=[row[0] for row in RANGES])
def test_ranges_agree(name: str, low: Any, high: Any) -> None:
    for value in (low, high):
        assert schema_accepts(**{name: value}) and core_accepts(**{name: value}), value
    assert not core_accepts(**{name: before(low)})
    assert schema_accepts(**{name: before(low)}) == (name in LOWER_IN_THE_SCHEMA)
    assert not schema_accepts(**{name: after(high)})
    assert core_accepts(**{name: after(high)}) == (name in HIGHER_IN_THE_CORE)


def test_every_number_has_a_range_here() -> None:
    ranged = {row[0] for row in RANGES} | {"stop_token_ids"}
    assert ranged == WIRE - {"ignore_eos"}


@pytest.mark.parametrize("name", [row[0] for row in RANGES if isinstance(row[1], float)])
def test_nan_is_refused_by_both(name: str) -> None:
    assert not schema_accepts(**{name: math.nan}) and not core_accepts(**{name: math.nan})


def test_the_number_of_stop_token_ids_agrees() -> None:
    most = [1] * LIMITS.max_stop_token_ids
    assert schema_accepts(stop_token_ids=most) and core_accepts(stop_token_ids=tuple(most))
    assert not schema_accepts(stop_token_ids=[*most, 1]) and not core_accepts(stop_token_ids=(*most, 1))


def test_top_k_of_all_tokens() -> None:
    for top_k in (-1, 0):
        assert sampling_params(pb.SamplingParams(top_k=top_k), make_facts(), num_prompt_tokens=1).top_k == 0


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
def test_an_endpoint_names_its_field_of_logprobs(kind: type[GenerationRequest]) -> None:
    assert kind.logprobs_field in kind.model_fields
