"""The sampling fields have the same names and ranges in the shim's schema, on the wire and in the engine core."""

import math
from typing import Any

import pytest

from engine_core.refusal import RequestRefused
from engine_core.request_check import check_sampling
from engine_core.step_plan import SamplingParams
from engine_core.token_lists import MAX_BIAS as CORE_MAX_BIAS
from services.engine.codec import sampling_params
from services.rpc.columns import pack_f32, pack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.shim.apis.chat.api import CHAT_API
from services.shim.apis.chat.schema import ChatRequest
from services.shim.apis.completions.api import COMPLETIONS_API
from services.shim.apis.completions.schema import CompletionRequest
from services.shim.apis.fields import kind_of
from services.shim.apis.request import MAX_BIAS, GenerationRequest
from services.shim.apis.structured import StructuredFields
from services.shim.parsing import validate
from tests.fakes import make_facts
from tests.shim.apis.field_values import submits
from tests.shim.harness import FACTS, LIMITS

WIRE = set(pb.SamplingParams.DESCRIPTOR.fields_by_name)
# Fields of the wire with another name in the schema.
SCHEMA_NAMES = {"logit_bias_token_ids": "logit_bias", "logit_biases": "logit_bias"}
# By the tokenizer, from TextSubmit.output.bad_words and .thinking_token_budget.
RESOLVED = {"bad_words_token_ids", "thinking_budget"}
# Supported fields of the schema that are no sampling parameter: where each one goes instead.
ELSEWHERE = {
    "model": "the response; the engine serves one model",
    "stream": "the response",
    "stream_options": "the response",
    "return_token_ids": "the response",
    "return_tokens_as_token_ids": "the response",
    "request_id": "the response, and TextSubmit.request_id, a label",
    "return_effective_parameters": "TextSubmit.return_sampling",
    "n": "TextSubmit.choices, one each",
    "seed": "TextSubmit.seed, which the engine replaces if it is absent",
    "stop": "TextSubmit.output: the tokenizer looks for stop strings",
    "bad_words": "TextSubmit.output: the tokenizer encodes them",
    **dict.fromkeys(StructuredFields.model_fields, "TextSubmit.output: the tokenizer makes a grammar of it"),
    "include_stop_str_in_output": "TextSubmit.output",
    "skip_special_tokens": "TextSubmit.output",
    "spaces_between_special_tokens": "TextSubmit.output",
    "truncate_prompt_tokens": "TextSubmit.truncation",
    "truncation_side": "TextSubmit.truncation",
    "cache_salt": "TextSubmit.cache_salt",
    "priority": "TextSubmit.priority",
    "add_special_tokens": "the prompt",
    "echo": "TextSubmit.output: the tokenizer has the prompt's text",
}
ELSEWHERE_CHAT = {
    "messages": "the prompt",
    "tools": "the prompt",
    "tool_choice": "TextSubmit.output: the tokenizer parses the answer",
    "parallel_tool_calls": "TextSubmit.output: the tokenizer ends the answer",
    "functions": "the prompt",
    "function_call": "TextSubmit.output: the tokenizer parses the answer",
    "include_reasoning": "the response",
    "thinking_token_budget": "TextSubmit.output: the tokenizer knows the markers",
    "documents": "the prompt",
    "chat_template": "the prompt",
    "chat_template_kwargs": "the prompt",
    "reasoning_effort": "the prompt",
    "verbosity": "the prompt",
    "add_generation_prompt": "the prompt",
    "continue_final_message": "the prompt",
    "max_completion_tokens": "OpenAI's newer name of max_tokens",
    "top_logprobs": "SamplingParams.logprobs; in chat, logprobs is a boolean",
}
ELSEWHERE_COMPLETION = {"prompt": "the prompt", "suffix": "the prompt"}
# One value of each field of the schema, none the default.
SET: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.5, "presence_penalty": 0.5, "frequency_penalty": 0.5,
    "repetition_penalty": 1.5, "max_tokens": 9, "min_tokens": 2, "ignore_eos": True, "stop_token_ids": [3],
    "logprobs": 4, "logit_bias": {"7": -1.5, "3": 2.0}, "allowed_token_ids": [4, 2], "logprob_token_ids": [6, 5],
    "prompt_logprobs": 3,
}  # fmt: skip
IN_THE_CORE: dict[str, Any] = {
    **{name: value for name, value in SET.items() if name != "logit_bias"},
    "stop_token_ids": (3,),
    "logit_bias_token_ids": pack_u32([7, 3]),
    "logit_biases": pack_f32([-1.5, 2.0]),
    "allowed_token_ids": pack_u32([4, 2]),
    "logprob_token_ids": pack_u32([6, 5]),
    "bad_words_token_ids": (),
    "thinking_budget": None,
    "eos_token_ids": (7,),
}


def supported(kind: type[GenerationRequest]) -> set[str]:
    return {name for name, field in kind.model_fields.items() if kind_of(field) == "supported"}


def test_the_schema_has_every_field_of_the_wire() -> None:
    names = {SCHEMA_NAMES.get(name, name) for name in WIRE - RESOLVED}
    assert names == SET.keys()
    assert supported(CompletionRequest) - ELSEWHERE.keys() - ELSEWHERE_COMPLETION.keys() == names
    assert supported(ChatRequest) - ELSEWHERE.keys() - ELSEWHERE_CHAT.keys() == names


def test_the_core_has_every_field_of_the_wire() -> None:
    assert set(SamplingParams.__struct_fields__) == WIRE | {"eos_token_ids"}


def test_every_field_reaches_the_core() -> None:
    """From the schema over the submit; the values are exact in float32."""
    (text,) = submits(COMPLETIONS_API, SET)
    (chat,) = submits(CHAT_API, {**SET, "logprobs": True, "top_logprobs": 4})
    for submit in (text, chat):
        core = sampling_params(submit.sampling, make_facts(eos_token_ids=(7,)), num_prompt_tokens=1)
        assert {name: getattr(core, name) for name in SamplingParams.__struct_fields__} == IN_THE_CORE
        check_sampling(core, make_facts())


def test_resolved_bad_words_reach_the_core() -> None:
    words = [pack_u32([1, 2]), pack_u32([3])]
    core = sampling_params(pb.SamplingParams(bad_words_token_ids=words), make_facts(), num_prompt_tokens=1)
    assert core.bad_words_token_ids == tuple(words)


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
    ("prompt_logprobs", 0, LIMITS.max_logprobs),
]
# -1 is vLLM's word for all: 0 in the core for top_k; for logprobs, the submit has the size of the vocabulary.
LOWER_IN_THE_SCHEMA = {"top_k", "logprobs", "prompt_logprobs"}
HIGHER_IN_THE_CORE = {"max_tokens"}  # limited by the model's length there, and here by what the wire carries


def schema_accepts(**fields: Any) -> bool:
    try:
        validate(CompletionRequest, {"prompt": "a", "max_tokens": 9, **fields}, FACTS)
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
    lists = {"stop_token_ids", "logit_bias", "allowed_token_ids", "logprob_token_ids"}
    assert {row[0] for row in RANGES} | lists | {"ignore_eos"} == SET.keys()


@pytest.mark.parametrize("name", [row[0] for row in RANGES if isinstance(row[1], float)])
def test_nan_is_refused_by_both(name: str) -> None:
    assert not schema_accepts(**{name: math.nan}) and not core_accepts(**{name: math.nan})


def test_the_number_of_stop_token_ids_agrees() -> None:
    most = [1] * LIMITS.max_stop_token_ids
    assert schema_accepts(stop_token_ids=most) and core_accepts(stop_token_ids=tuple(most))
    assert not schema_accepts(stop_token_ids=[*most, 1]) and not core_accepts(stop_token_ids=(*most, 1))


def test_the_number_of_logprob_token_ids_agrees() -> None:
    for count, good in ((LIMITS.max_logprob_token_ids, True), (LIMITS.max_logprob_token_ids + 1, False)):
        ids = [1] * count
        assert schema_accepts(logprobs=0, logprob_token_ids=ids) == good
        assert core_accepts(logprobs=0, logprob_token_ids=pack_u32(ids)) == good
    assert not schema_accepts(logprob_token_ids=[1]) and not core_accepts(logprob_token_ids=pack_u32([1]))


def test_the_number_of_allowed_ids_agrees() -> None:
    for count, good in ((FACTS.vocab_size, True), (FACTS.vocab_size + 1, False)):
        assert schema_accepts(allowed_token_ids=[1] * count) == good
        assert core_accepts(allowed_token_ids=pack_u32([1] * count)) == good


def core_accepts_bias(ids: list[int], biases: list[float]) -> bool:
    facts = make_facts(vocab_size=LIMITS.max_logit_bias + 2)
    sampling = SamplingParams(max_tokens=9, logit_bias_token_ids=pack_u32(ids), logit_biases=pack_f32(biases))
    try:
        check_sampling(sampling, facts)
    except RequestRefused as refused:
        assert refused.param == "logit_bias"
        return False
    return True


def test_the_range_of_biases_agrees() -> None:
    assert MAX_BIAS == CORE_MAX_BIAS
    for bias, good in ((-MAX_BIAS, True), (MAX_BIAS, True), (-MAX_BIAS - 0.01, False), (MAX_BIAS + 0.01, False)):
        assert schema_accepts(logit_bias={"1": bias}) == core_accepts_bias([1], [bias]) == good


def test_the_number_of_biases_agrees() -> None:
    for count, good in ((LIMITS.max_logit_bias, True), (LIMITS.max_logit_bias + 1, False)):
        assert schema_accepts(logit_bias={str(one): 1 for one in range(count)}) == good
        assert core_accepts_bias(list(range(count)), [1.0] * count) == good


def test_no_request_that_the_schema_accepts_has_an_id_twice() -> None:
    """The core refuses it; the schema takes one way to write an id only."""
    assert not core_accepts_bias([1, 1], [1.0, 1.0])
    assert not schema_accepts(logit_bias={"1": 1, "01": 1})


def test_top_k_of_all_tokens() -> None:
    for top_k in (-1, 0):
        assert sampling_params(pb.SamplingParams(top_k=top_k), make_facts(), num_prompt_tokens=1).top_k == 0


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
def test_an_endpoint_names_its_field_of_logprobs(kind: type[GenerationRequest]) -> None:
    assert kind.logprobs_field in kind.model_fields
