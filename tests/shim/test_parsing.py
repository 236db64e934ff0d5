"""Requests beyond the limits of the shim or of the engine are refused, with the field and the limit."""

import copy
from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.output_limits import MAX_STOP_STRINGS
from services.rpc.prompt_limits import MAX_TRUNCATED_IDS
from services.shim import parsing
from services.shim.apis.chat.schema import ChatRequest
from services.shim.apis.completions.schema import CompletionRequest
from services.shim.apis.request import GenerationRequest
from services.shim.parsing import (
    MAX_MESSAGE_PARTS,
    MAX_TOOLS,
    check_counts,
    check_num_choices,
    check_prompt_lengths,
    check_submit_size,
    validate,
)
from tests.shim.harness import FACTS, LIMITS

Body = dict[str, Any]
USER = {"role": "user", "content": "Hi"}
BASE: dict[type[GenerationRequest], Body] = {ChatRequest: {"messages": [USER]}, CompletionRequest: {"prompt": "Hi"}}
both = pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])


def refused(kind: type[GenerationRequest], body: Body, facts: pb.EngineFacts) -> TandemError:
    with pytest.raises(TandemError) as caught:
        validate(kind, BASE[kind] | body, facts)
    assert caught.value.status.http == 400
    return caught.value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [USER] * (MAX_MESSAGE_PARTS + 1)}, "messages"),
        ({"messages": [{"role": "user", "content": [{}] * MAX_MESSAGE_PARTS}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}] * MAX_MESSAGE_PARTS}]}, "messages"),
        ({"tools": [5] * (MAX_TOOLS + 1)}, "tools"),
        ({"stop": ["a"] * (MAX_STOP_STRINGS + 1)}, "stop"),
    ],
)
def test_what_is_too_much_is_counted_first(body: Body, param: str) -> None:
    with pytest.raises(TandemError, match=f"{param}: .* at most") as caught:
        check_counts(body)
    assert caught.value.param == param
    check_counts({name: value[:-1] for name, value in body.items()})


def facts_with(**limits: int) -> pb.EngineFacts:
    return pb.EngineFacts(vocab_size=4, max_model_len=64, limits=pb.RequestLimits(**limits))


@both
def test_the_limits_are_those_of_the_engine(kind: type[GenerationRequest]) -> None:
    facts = facts_with(
        max_n=3,
        max_logprobs=5,
        max_stop_token_ids=2,
        max_num_queued_reqs=64,
        max_logit_bias=2,
        max_logprob_token_ids=2,
        max_bad_words=2,
    )
    more: Body = {"logprobs": True} if kind is ChatRequest else {"logprobs": 0}
    at_limit: dict[str, tuple[Any, Any]] = {
        "n": (3, 4),
        kind.logprobs_field: (5, 6),
        "stop_token_ids": ([1, 2], [1, 2, 3]),
        "logit_bias": ({"1": 1, "2": 1}, {"1": 1, "2": 1, "3": 1}),
        "logprob_token_ids": ([1, 2], [1, 2, 3]),
        "bad_words": (["a", "b"], ["a", "b", "c"]),
        "allowed_token_ids": ([0, 1, 2, 3], [0, 1, 2, 3, 3]),
    }
    for name, (good, bad) in at_limit.items():
        validate(kind, BASE[kind] | more | {name: good}, facts)
        error = refused(kind, more | {name: bad}, facts)
        limit = str(good if isinstance(good, int) else len(good))
        assert error.param == name and error.message.startswith(name) and error.message.endswith(limit)


@both
def test_before_the_model_is_known_the_schema_counts(kind: type[GenerationRequest]) -> None:
    validate(kind, BASE[kind] | {"n": LIMITS.max_n + 1, "bad_words": ["a"] * (LIMITS.max_bad_words + 1)}, None)
    with pytest.raises(TandemError):
        validate(kind, BASE[kind] | {"n": 0}, None)


@both
def test_unknown_fields_are_refused_unless_ignored(kind: type[GenerationRequest]) -> None:
    assert refused(kind, {"other": 1}, FACTS).message == "unsupported parameter: other"
    validate(kind, BASE[kind] | {"other": 1}, FACTS, ignore_unknown_fields=True)
    nested = {"stream": True, "stream_options": {"other": 1, "include_usage": True}}
    assert refused(kind, copy.deepcopy(nested), FACTS).message == "unsupported parameter: stream_options.other"
    assert validate(kind, BASE[kind] | nested, FACTS, ignore_unknown_fields=True).include_usage


@both
@pytest.mark.parametrize("n", [2**31, 2**64, 10**4000])
def test_an_absurd_n_is_refused_at_once(kind: type[GenerationRequest], n: int) -> None:
    assert refused(kind, {"n": n}, FACTS).message == f"n: Input should be less than or equal to {LIMITS.max_n}"


@both
def test_an_n_that_no_queue_would_hold_names_the_option(kind: type[GenerationRequest]) -> None:
    facts = facts_with(max_n=4, max_num_queued_reqs=4)
    validate(kind, BASE[kind] | {"n": 4}, facts)
    error = refused(kind, {"n": 5}, facts)
    assert (error.param, error.message) == ("n", "n is 5, but max_num_queued_reqs is 4")


@pytest.mark.parametrize("prompt", [[1] * 8, [[1] * 7, [1] * 8]])
def test_token_ids_beyond_the_models_length_are_refused(prompt: list[Any]) -> None:
    with pytest.raises(TandemError, match="the prompt is too long: it has 8 tokens, but .* context length is 8 tokens"):
        check_prompt_lengths(prompt, max_model_len=8, truncated=False)


def test_a_prompt_to_truncate_has_a_limit_of_its_own() -> None:
    check_prompt_lengths([1] * MAX_TRUNCATED_IDS, max_model_len=8, truncated=True)
    with pytest.raises(TandemError, match=f"{MAX_TRUNCATED_IDS + 1} token ids, but at most {MAX_TRUNCATED_IDS} can"):
        check_prompt_lengths([[1], [1] * (MAX_TRUNCATED_IDS + 1)], max_model_len=8, truncated=True)
    most = MAX_TRUNCATED_IDS + 5
    check_prompt_lengths([1] * most, max_model_len=most, truncated=True)
    with pytest.raises(TandemError, match=f"{most + 1} token ids, but at most {most} can be truncated"):
        check_prompt_lengths([1] * (most + 1), max_model_len=most, truncated=True)


@pytest.mark.parametrize("prompt", ["text", ["text"] * 9, [1] * 7, [[1] * 7] * 9, [], [[]], None])
def test_other_prompts_are_left_to_the_schema(prompt: Any) -> None:
    for truncated in (False, True):
        check_prompt_lengths(prompt, max_model_len=8, truncated=truncated)


def test_a_submit_that_fits_no_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = text_pb2.TextSubmit(request_id="x" * 100)
    monkeypatch.setattr(parsing, "MAX_SUBMIT_BYTES", submit.ByteSize())
    check_submit_size(submit)
    submit.request_id += "x"
    with pytest.raises(TandemError, match="has 103 bytes as an internal message, but at most 102 are allowed"):
        check_submit_size(submit)


def test_too_many_choices_of_all_prompts() -> None:
    submits = [text_pb2.TextSubmit(choices=[pb.Choice()] * 3)] * 2
    check_num_choices(submits, pb.RequestLimits(max_num_queued_reqs=6))
    with pytest.raises(TandemError, match="asks for 6 choices, but max_num_queued_reqs is 5"):
        check_num_choices(submits, pb.RequestLimits(max_num_queued_reqs=5))
