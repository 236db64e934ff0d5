"""Every limit is refused with a message that has the field, its value and the limit."""

import hashlib
import math
import re
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine_core.block_hash import chain_hash, root_hash
from engine_core.refusal import RequestRefused
from engine_core.request import Request
from engine_core.request_check import (
    ABOVE_LOW,
    MAX_CACHE_GROUP,
    MAX_CACHE_SALT,
    MAX_GRAMMAR_BYTES,
    MAX_SEED,
    SAMPLING_RANGES,
    NewChoice,
    make_request,
)
from engine_core.step_plan import SamplingParams, pack_i32
from services.grammar import limits
from tests.fakes import ROOT_KEY, make_core_request, make_facts

NAN = float("nan")


def checked(sampling: SamplingParams, seed: int = 0) -> Request:
    return make_request(NewChoice(0, 0, [1], [], sampling, seed, "", None), make_facts(), ROOT_KEY)


@pytest.mark.parametrize(
    ("param", "changes"),
    [
        ("top_p", {"top_p": 0.0}),
        ("top_p", {"top_p": 1.1}),
        ("top_p", {"top_p": NAN}),
        ("min_p", {"min_p": -0.1}),
        ("presence_penalty", {"presence_penalty": 2.5}),
        ("frequency_penalty", {"frequency_penalty": -2.5}),
        ("repetition_penalty", {"repetition_penalty": 0.0}),
        ("max_tokens", {"max_tokens": 0}),
        ("min_tokens", {"max_tokens": 3, "min_tokens": 4}),
        ("logprobs", {"logprobs": 21}),
        ("stop_token_ids", {"stop_token_ids": tuple(range(129))}),
        ("stop_token_ids", {"stop_token_ids": (50,)}),
        ("allowed_token_ids", {"allowed_token_ids": pack_i32([50])}),
    ],
)
def test_a_value_outside_its_range_is_refused(param: str, changes: dict[str, object]) -> None:
    with pytest.raises(RequestRefused, match=param) as refused:
        make_core_request(0, [1, 2], **changes)  # type: ignore[arg-type]
    assert refused.value.param == param


@pytest.mark.parametrize("param", SAMPLING_RANGES)
def test_a_sampling_parameter_may_have_the_ends_of_its_range(param: str) -> None:
    low, high = SAMPLING_RANGES[param]
    allowed = [high] if param in ABOVE_LOW else [low, high]
    for value in (one for one in allowed if not math.isinf(one)):
        params = SamplingParams(**{"max_tokens": 8, param: type(low)(value)})  # type: ignore[arg-type]
        assert getattr(checked(params).sampling, param) == value
    refused = [low - 1, NAN, *([] if math.isinf(high) else [high * 1.01 + 1])]
    for value in refused:
        params = SamplingParams(**{"max_tokens": 8, param: value})  # type: ignore[arg-type]
        allowed = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        message = f"{param} is {value:g}, but must be {allowed}"
        with pytest.raises(RequestRefused, match=f"^{re.escape(message)}$") as caught:
            checked(params)
        assert caught.value.param == param


@pytest.mark.parametrize("param", sorted(ABOVE_LOW))
def test_a_lowest_value_that_is_excluded_is_refused(param: str) -> None:
    with pytest.raises(RequestRefused, match=f"^{param} must be greater than 0$"):
        make_core_request(0, [1], **{param: SAMPLING_RANGES[param][0]})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens is 4, but must be from 0 to 3"),
        ({"logprobs": 21}, "logprobs is 21, but must be from 0 to 20"),
        ({"stop_token_ids": (1,) * 129}, "number of stop_token_ids is 129, but must be from 0 to 128"),
    ],
)
def test_a_limit_that_depends_on_the_request_or_the_model_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RequestRefused, match=f"^{message}$"):
        make_core_request(0, [1], **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1])
def test_a_seed_is_an_unsigned_number_of_64_bits(seed: int) -> None:
    with pytest.raises(RequestRefused, match=f"^seed is {seed}, but must be from 0 to {MAX_SEED}$"):
        checked(SamplingParams(8), seed)
    assert checked(SamplingParams(8), MAX_SEED).seed == MAX_SEED


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message", "exceeds_context"),
    [
        ([], 1, "empty", False),
        ([1] * 64, 1, "64 tokens.*maximum context length is 64", True),
        ([1] * 60, 5, "max_tokens is 5 and the prompt has 60 tokens.*64 tokens: at most 4", True),
        ([50], 1, "prompt: token id 50 is not in the vocabulary of 50", False),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused(
    prompt: list[int], max_tokens: int, message: str, exceeds_context: bool
) -> None:
    with pytest.raises(RequestRefused, match=message) as refused:
        make_core_request(0, prompt, max_tokens, make_facts(max_model_len=64))
    assert refused.value.exceeds_context is exceeds_context


def test_a_request_that_could_never_run_is_refused_with_the_reason() -> None:
    facts = make_facts(num_blocks=4, block_size=4, max_model_len=64)
    make_core_request(0, [1] * 10, 7, facts)
    with pytest.raises(RequestRefused, match="needs 17 tokens of KV cache, but all of it holds 16") as caught:
        make_core_request(0, [1] * 10, 8, facts)
    assert caught.value.param == "max_tokens"


def test_more_resumed_tokens_than_max_tokens_are_refused() -> None:
    with pytest.raises(RequestRefused, match="3 resumed_token_ids are more than max_tokens, 2"):
        make_core_request(0, [1], 2, resumed=[1, 2, 3])


def test_the_first_missing_logprob_is_one_of_the_prompt() -> None:
    """The worker would refuse the plan, and die with it."""
    params = {"max_tokens": 2, "prompt_logprobs": 1}
    assert make_core_request(0, [1, 2], scored_from=2, **params).next_prompt_logprob == 2  # type: ignore[arg-type]
    for first in (3, 2**32 - 1):
        with pytest.raises(RequestRefused, match=f"prompt_logprobs_from is {first}, but the prompt has 2 tokens"):
            make_core_request(0, [1, 2], scored_from=first, **params)  # type: ignore[arg-type]


def test_a_grammar_is_bounded_in_bytes() -> None:
    """Tokenizer and worker have the same limit."""
    assert MAX_GRAMMAR_BYTES == limits.MAX_GRAMMAR_BYTES
    make_core_request(0, [1], grammar="é" * (MAX_GRAMMAR_BYTES // 2))
    with pytest.raises(RequestRefused, match="the grammar has more than 4194304 bytes") as caught:
        make_core_request(0, [1], grammar="é" * (MAX_GRAMMAR_BYTES // 2) + "!")
    assert caught.value.param == "grammar"


@pytest.mark.parametrize(("field", "limit"), [("cache_group", MAX_CACHE_GROUP), ("cache_salt", MAX_CACHE_SALT)])
def test_what_separates_caches_is_bounded_in_characters(field: str, limit: int) -> None:
    make_core_request(0, [1], **{field: "é" * limit})  # type: ignore[arg-type]
    with pytest.raises(RequestRefused, match=f"^{field} has {limit + 1} characters, but must have at most {limit}$"):
        make_core_request(0, [1], **{field: "é" * (limit + 1)})  # type: ignore[arg-type]


def test_block_hashes_depend_on_everything_before() -> None:
    root = root_hash(ROOT_KEY, "weights", "group", "")
    first = chain_hash([], root, [1, 2, 3, 4, 5], 2, 2)
    for changed_root, tokens in ((root, [9, 2, 3, 4]), (root_hash(ROOT_KEY, "weights", "group", "salt"), [1, 2, 3, 4])):
        assert chain_hash([], changed_root, tokens, 2, 2) != first


@given(one=st.tuples(st.text(), st.text(), st.text()), other=st.tuples(st.text(), st.text(), st.text()))
@example(one=("weights", "a", "b"), other=("weights", "ab", ""))
@example(one=("weights", "a", "b"), other=("weights", "", "ab"))
@example(one=("weights", "a", "b"), other=("weightsa", "", "b"))
def test_each_field_of_a_root_is_separate(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert (root_hash(ROOT_KEY, *one) == root_hash(ROOT_KEY, *other)) == (one == other)


def test_a_chain_goes_on_from_the_hashes_that_are_known() -> None:
    tokens, hashes = list(range(8)), [b"known"]
    assert chain_hash(hashes, b"root", tokens, 2, 0) == b"root"
    assert chain_hash(hashes, b"root", tokens, 2, 1) == b"known"
    last = chain_hash(hashes, b"root", tokens, 2, 3)
    assert last == hashes[2] == hashlib.sha256(hashes[1] + struct.pack("<2I", 4, 5)).digest() and len(hashes) == 3
