"""The last check before the core: every limit refuses with a message that names the field and the limit."""

import hashlib
import struct

import pytest

from engine_core.block_hash import chain_hash, root_hash
from engine_core.request_check import RequestRefused
from tests.fakes import make_core_request, make_facts

NAN = float("nan")


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
    ],
)
def test_a_value_outside_its_range_is_refused(param: str, changes: dict[str, object]) -> None:
    with pytest.raises(RequestRefused, match=param) as refused:
        make_core_request(0, [1, 2], **changes)  # type: ignore[arg-type]
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([], 1, "empty"),
        ([1] * 64, 1, "64 tokens.*maximum context length is 64"),
        ([1] * 60, 5, "max_tokens is 5 and the prompt has 60 tokens.*64 tokens: at most 4"),
        ([50], 1, "prompt: token id 50 is not in the vocabulary of 50"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused(prompt: list[int], max_tokens: int, message: str) -> None:
    with pytest.raises(RequestRefused, match=message):
        make_core_request(0, prompt, max_tokens, make_facts(max_model_len=64))


def test_more_resumed_tokens_than_max_tokens_are_refused() -> None:
    with pytest.raises(RequestRefused, match="3 resumed_token_ids are more than max_tokens, 2"):
        make_core_request(0, [1], 2, resumed=[1, 2, 3])


def test_block_hashes_depend_on_everything_before() -> None:
    root = root_hash("weights", "")
    first = chain_hash([], root, [1, 2, 3, 4, 5], 2, 2)
    for changed_root, tokens in ((root, [9, 2, 3, 4]), (root_hash("weights", "salt"), [1, 2, 3, 4])):
        assert chain_hash([], changed_root, tokens, 2, 2) != first
    assert root_hash("ab", "c") != root_hash("a", "bc")


def test_a_chain_goes_on_from_the_hashes_that_are_known() -> None:
    tokens, hashes = list(range(8)), [b"known"]
    assert chain_hash(hashes, b"root", tokens, 2, 0) == b"root"
    assert chain_hash(hashes, b"root", tokens, 2, 1) == b"known"
    last = chain_hash(hashes, b"root", tokens, 2, 3)
    assert last == hashes[2] == hashlib.sha256(hashes[1] + struct.pack("<2I", 4, 5)).digest() and len(hashes) == 3
