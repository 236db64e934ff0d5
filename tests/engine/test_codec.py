"""gRPC messages and types of the core carry the same values; missing fields of a request get defaults."""

import dataclasses
from typing import Any

import pytest

from engine_core.events import Finished, SchedulerStats
from engine_core.kv_groups import FULL, SlidingWindow
from engine_core.request import Stop
from engine_core.step_plan import ThinkingBudget
from engine_core.worker_messages import SamplingDefaults
from services.engine.codec import (
    effective_sampling,
    engine_facts,
    engine_stats,
    new_choices,
    sampling_params,
    terminal,
)
from services.rpc.columns import pack_f32, pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from tests.fakes import make_facts

DEFAULTS = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1)


def test_a_request_without_sampling_fields_gets_the_models_defaults_then_openais() -> None:
    params = sampling_params(pb.SamplingParams(), make_facts(sampling_defaults=DEFAULTS), 10)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.6, 0.9, 20, 0.1)
    assert params.repetition_penalty == 1.1
    assert (params.presence_penalty, params.frequency_penalty, params.min_tokens, params.logprobs) == (0, 0, 0, None)
    assert params.eos_token_ids == (0,)


def test_the_requests_fields_win_even_where_they_are_zero() -> None:
    given: dict[str, Any] = {"temperature": 0.0, "top_p": 0.5, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    message = pb.SamplingParams(
        **given, presence_penalty=0.25, frequency_penalty=-0.5, min_tokens=2, stop_token_ids=[7, 8], logprobs=0
    )
    params = sampling_params(message, make_facts(sampling_defaults=DEFAULTS), 10)
    assert {name: getattr(params, name) for name in given} == given
    assert (params.presence_penalty, params.frequency_penalty, params.min_tokens) == (0.25, -0.5, 2)
    assert (params.stop_token_ids, params.logprobs) == ((7, 8), 0)


def test_a_negative_top_k_means_all_tokens_as_in_vllm() -> None:
    assert sampling_params(pb.SamplingParams(top_k=-1), make_facts(sampling_defaults=DEFAULTS), 10).top_k == 0


def test_ignore_eos_keeps_the_eos_tokens() -> None:
    """min_tokens masks them."""
    params = sampling_params(pb.SamplingParams(ignore_eos=True), make_facts(), 10)
    assert params.eos_token_ids == (0,) and params.ignore_eos


COLUMNS = {
    "logit_bias_token_ids": pack_u32([1, 2]),
    "logit_biases": pack_f32([0.5, -1.0]),
    "allowed_token_ids": pack_u32([1, 2, 3]),
    "logprob_token_ids": pack_u32([4]),
}


def test_lists_of_token_ids_stay_columns() -> None:
    message = pb.SamplingParams(**COLUMNS, bad_words_token_ids=[pack_u32([5]), pack_u32([6, 7])])
    params = sampling_params(message, make_facts(), 10)
    assert {name: getattr(params, name) for name in COLUMNS} == COLUMNS
    assert params.bad_words_token_ids == (pack_u32([5]), pack_u32([6, 7]))


def test_a_thinking_budget_reaches_the_core() -> None:
    start, end = pack_u32([5, 6]), pack_u32([7])
    message = pb.SamplingParams(
        thinking_budget=pb.ThinkingBudget(max_tokens=2**32 - 1, start_token_ids=start, end_token_ids=end)
    )
    facts = make_facts()
    assert sampling_params(message, facts, 10).thinking_budget == ThinkingBudget(2**32 - 1, start, end, False)
    message.thinking_budget.starts_open = True
    message.thinking_budget.ClearField("max_tokens")
    assert sampling_params(message, facts, 10).thinking_budget == ThinkingBudget(0, start, end, True)
    assert sampling_params(pb.SamplingParams(), facts, 10).thinking_budget is None


def test_the_effective_parameters_have_every_default_and_no_column() -> None:
    message = pb.SamplingParams(**COLUMNS, bad_words_token_ids=[pack_u32([5])], min_tokens=1, stop_token_ids=[9])
    sent = effective_sampling(sampling_params(message, make_facts(sampling_defaults=DEFAULTS), 10))
    expected = pb.SamplingParams(
        max_tokens=54, temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, presence_penalty=0, frequency_penalty=0,
        repetition_penalty=1.1, min_tokens=1, stop_token_ids=[9],
    )  # fmt: skip
    assert sent == expected
    assert effective_sampling(sampling_params(pb.SamplingParams(logprobs=0), make_facts(), 1)).HasField("logprobs")


@pytest.mark.parametrize(
    ("given", "default", "num_prompt_tokens", "expected"),
    [
        (5, 20, 10, 5),
        (100, None, 10, 100),  # too many are refused later, not cut
        (None, 20, 10, 20),
        (None, 20, 50, 14),  # what is left of max_model_len, 64
        (None, None, 10, 54),
        (None, None, 64, 1),  # no room at all: refused later, with a message about the prompt
    ],
)
def test_max_tokens(given: int | None, default: int | None, num_prompt_tokens: int, expected: int) -> None:
    facts = make_facts(max_model_len=64, sampling_defaults=SamplingDefaults(max_tokens=default))
    assert sampling_params(pb.SamplingParams(max_tokens=given), facts, num_prompt_tokens).max_tokens == expected


def submit(**fields: Any) -> engine_pb2.Submit:
    return engine_pb2.Submit(prompt_token_ids=pack_u32([5, 6, 7]), sampling=pb.SamplingParams(max_tokens=9), **fields)


def test_each_choice_becomes_a_new_choice_with_its_own_resumed_tokens() -> None:
    message = submit(
        cache_salt="salt",
        cache_group="group",
        priority=-3,
        grammar="start: /a/",
        choices=[
            pb.Choice(handle=100, choice=0),
            pb.Choice(handle=101, choice=4, resumed_token_ids=pack_u32([8]), cached_tokens=0),
        ],
    )
    first, second = new_choices(message, make_facts(), [1, 2], seed=42)
    assert (first.handle, first.choice, first.resumed_token_ids, first.num_cached_tokens) == (1, 0, [], None)
    assert (second.handle, second.choice, second.resumed_token_ids, second.num_cached_tokens) == (2, 4, [8], 0)
    for new in (first, second):
        assert (new.prompt_token_ids, new.seed, new.cache_salt, new.priority) == ([5, 6, 7], 42, "salt", -3)
        assert new.sampling.max_tokens == 9 and new.grammar == "start: /a/" and new.cache_group == "group"


def test_a_column_with_half_a_token_id_is_refused() -> None:
    message = submit(choices=[pb.Choice(handle=1, resumed_token_ids=b"\0\0\0")])
    with pytest.raises(ValueError, match="a column has 3 bytes"):
        new_choices(message, make_facts(), [1], seed=0)


def test_facts_of_the_hello() -> None:
    facts = make_facts(num_blocks=77, eos_token_ids=(0, 3), kv_groups=(FULL, SlidingWindow(9, 64)))
    message = engine_facts(facts, max_num_seqs=8, max_n=4, max_num_queued_reqs=30)
    assert (list(message.served_model_names), message.max_model_len, message.vocab_size) == (["fake"], 64, 50)
    assert (list(message.eos_token_ids), message.block_size) == ([0, 3], 4)
    assert [(group.kind, group.num_blocks, group.window) for group in message.kv_groups] == [
        ("full", 77, 0),
        ("window", 77, 9),
    ]
    limits = message.limits
    assert (limits.max_logprobs, limits.max_n, limits.max_num_seqs, limits.max_num_queued_reqs) == (20, 4, 8, 30)
    found = (limits.max_stop_token_ids, limits.max_logit_bias, limits.max_logprob_token_ids, limits.max_bad_words)
    assert found == (128, 1024, 128, 1024)
    assert (message.numerics_id, message.weights_version) == ("fake-numerics", "fake-weights")


def test_every_field_of_the_stats_reaches_the_message() -> None:
    names = [one.name for one in dataclasses.fields(SchedulerStats)]
    stats = SchedulerStats(*range(1, len(names) + 1))
    message = engine_stats(stats)
    assert [getattr(message, name) for name in names] == list(range(1, len(names) + 1))


def test_the_terminal_message_of_each_finish_reason() -> None:
    facts = make_facts()

    def of(stop: Stop) -> engine_pb2.Terminal:
        return terminal(9, Finished(1, stop, 3, 4, 2, 0), facts)

    stopped = of(Stop("stop", 7))
    assert (stopped.handle, stopped.reason, stopped.stop_token_id) == (9, pb.FINISH_REASON_STOP, 7)
    assert (stopped.prompt_tokens, stopped.output_tokens, stopped.cached_tokens) == (3, 4, 2)
    assert (stopped.numerics_id, stopped.weights_version) == ("fake-numerics", "fake-weights")
    assert not stopped.HasField("error")
    assert not of(Stop("stop")).HasField("stop_token_id"), "an eos token is not one of stop_token_ids"
    assert of(Stop("length")).reason == pb.FINISH_REASON_LENGTH
    failed = of(Stop("error", message="a bad step"))
    assert (failed.reason, failed.error.code, failed.error.message) == (
        pb.FINISH_REASON_ERROR,
        "INTERNAL",
        "a bad step",
    )
    refused = of(Stop("error", message="no token is left", param="bad_words"))
    assert (refused.reason, refused.error.code, refused.error.message, refused.error.param) == (
        pb.FINISH_REASON_ERROR,
        "INVALID_ARGUMENT",
        "no token is left",
        "bad_words",
    )
