"""Lists of token ids: each limit is refused with a message that has the field, the value and the limit."""

from typing import Any

import numpy as np
import pytest

from engine_core.refusal import RequestRefused
from engine_core.step_plan import SamplingParams, ThinkingBudget, pack_i32
from engine_core.token_lists import MAX_BAD_WORD_SEQUENCES, MAX_BAD_WORD_TOKENS, MAX_LOGIT_BIAS, check_token_lists

VOCAB = 5000


def floats(*values: float) -> bytes:
    return np.array(values, dtype="<f4").tobytes()


def bias(ids: list[int], *values: float) -> dict[str, bytes]:
    return {"logit_bias_token_ids": pack_i32(ids), "logit_biases": floats(*(values or [1.0] * len(ids)))}


def words(*sequences: list[int]) -> dict[str, tuple[bytes, ...]]:
    return {"bad_words_token_ids": tuple(map(pack_i32, sequences))}


def budget(max_tokens: int, start: list[int], end: list[int]) -> dict[str, ThinkingBudget]:
    return {"thinking_budget": ThinkingBudget(max_tokens, pack_i32(start), pack_i32(end))}


def check(**fields: Any) -> None:
    check_token_lists(SamplingParams(8, **fields), VOCAB)


ALLOWED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "the most biases": bias(list(range(MAX_LOGIT_BIAS))),
    "the largest biases": bias([0, VOCAB - 1], -100.0, 100.0),
    "all ids are allowed": {"allowed_token_ids": pack_i32(list(range(VOCAB)))},
    "an id twice": {"allowed_token_ids": pack_i32([3, 3])},
    "the most and the longest words": words(*[[1] * MAX_BAD_WORD_TOKENS] * MAX_BAD_WORD_SEQUENCES),
    "the most logprobs": {"logprobs": 0, "logprob_token_ids": pack_i32([7] * 128)},
    "one allowed id is left": words([3], [4, 5])
    | {"allowed_token_ids": pack_i32([3, 2, 7, 5]), "min_tokens": 2, "eos_token_ids": (2,), "stop_token_ids": (7,)},
    "an end without min_tokens": {"allowed_token_ids": pack_i32([2, 3]), "eos_token_ids": (2,), "stop_token_ids": (3,)},
    "a bias is no mask": bias([3], -100.0) | {"allowed_token_ids": pack_i32([3])},
    "no thinking": budget(0, [], [VOCAB - 1]),
    "the most thinking and the longest markers": budget(2**31 - 1, [1] * 64, [2] * 64),
    "the most stop ids": {"stop_token_ids": (VOCAB - 1,) * 128},
}
NONE_LEFT = (
    "allowed_token_ids leave no token to sample: bad_words, or min_tokens before an end of the answer, exclude each of"
    " them"
)
NOT_IN = "is not in the vocabulary of 5000 tokens"
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "too many biases": (
        bias(list(range(MAX_LOGIT_BIAS + 1))), "logit_bias", "number of logit_bias is 1025, but must be from 0 to 1024",
    ),
    "a bias twice": (bias([3, 4, 3]), "logit_bias", "logit_bias has a token id twice"),
    "a bias outside": (bias([3, VOCAB]), "logit_bias", f"logit_bias: token id 5000 {NOT_IN}"),
    "a bias beyond 31 bits": (
        {"logit_bias_token_ids": b"\xff" * 4, "logit_biases": floats(1)}, "logit_bias",
        f"logit_bias: token id 4294967295 {NOT_IN}",
    ),
    "a bias too large": (
        bias([3, 4], 1.0, 100.5), "logit_bias",
        "logit_bias of token id 4 is 100.5, but must be from -100 to 100",
    ),
    "a bias that is no number": (
        bias([3], float("nan")), "logit_bias", "logit_bias of token id 3 is nan, but must be from -100 to 100",
    ),
    "a missing value": (bias([3, 4], 1.0), "logit_bias", "logit_bias has 2 token ids, but 1 values"),
    "half an id": (
        {"logit_bias_token_ids": b"\0" * 3}, "logit_bias", "logit_bias: a column has 3 bytes, not a multiple of 4",
    ),
    "half an allowed id": (
        {"allowed_token_ids": b"\0" * 6}, "allowed_token_ids",
        "allowed_token_ids: a column has 6 bytes, not a multiple of 4",
    ),
    "more than the vocabulary": (
        {"allowed_token_ids": pack_i32([1] * (VOCAB + 1))}, "allowed_token_ids",
        "number of allowed_token_ids is 5001, but must be from 0 to 5000",
    ),
    "an allowed id outside": (
        {"allowed_token_ids": pack_i32([1, 5001])}, "allowed_token_ids", f"allowed_token_ids: token id 5001 {NOT_IN}",
    ),
    "only ends are allowed": (
        {"allowed_token_ids": pack_i32([2]), "min_tokens": 2, "eos_token_ids": (2,), "ignore_eos": True},
        "allowed_token_ids", NONE_LEFT,
    ),
    "only stop ids are allowed": (
        {"allowed_token_ids": pack_i32([30, 30]), "min_tokens": 1, "stop_token_ids": (30,)}, "allowed_token_ids",
        NONE_LEFT,
    ),
    "only bad words are allowed": (
        words([20], [21, 22]) | {"allowed_token_ids": pack_i32([20])}, "allowed_token_ids", NONE_LEFT,
    ),
    "an end and a bad word are allowed": (
        words([20]) | {"allowed_token_ids": pack_i32([20, 2]), "min_tokens": 1, "eos_token_ids": (2,)},
        "allowed_token_ids", NONE_LEFT,
    ),
    "too many words": (
        words(*[[1]] * 2049), "bad_words", "number of bad_words is 2049, but must be from 0 to 2048",
    ),
    "a word without tokens": (
        words([1], []), "bad_words", "one of bad_words has 0 tokens, but must have from 1 to 32",
    ),
    "a long word": (words([1] * 33), "bad_words", "one of bad_words has 33 tokens, but must have from 1 to 32"),
    "a word outside": (words([1], [2, 5000]), "bad_words", f"bad_words: token id 5000 {NOT_IN}"),
    "too many logprobs": (
        {"logprobs": 0, "logprob_token_ids": pack_i32([1] * 129)}, "logprob_token_ids",
        "number of logprob_token_ids is 129, but must be from 0 to 128",
    ),
    "a logprob outside": (
        {"logprobs": 0, "logprob_token_ids": pack_i32([5000])}, "logprob_token_ids",
        f"logprob_token_ids: token id 5000 {NOT_IN}",
    ),
    "ids without logprobs": (
        {"logprob_token_ids": pack_i32([1])}, "logprob_token_ids",
        "logprob_token_ids need logprobs, which the request does not ask for",
    ),
    "too much thinking": (
        budget(2**31, [], [2]), "thinking_token_budget",
        "thinking_token_budget is 2147483648, but must be from 0 to 2147483647",
    ),
    "a thinking budget below zero": (
        budget(-1, [], [2]), "thinking_token_budget", "thinking_token_budget is -1, but must be from 0 to 2147483647",
    ),
    "no end of thinking": (
        budget(1, [1], []), "thinking_budget.end_token_ids",
        "thinking_budget.end_token_ids has 0 tokens, but must have from 1 to 64",
    ),
    "a long start of thinking": (
        budget(1, [1] * 65, [2]), "thinking_budget.start_token_ids",
        "thinking_budget.start_token_ids has 65 tokens, but must have from 0 to 64",
    ),
    "a long end of thinking": (
        budget(1, [1], [2] * 65), "thinking_budget.end_token_ids",
        "thinking_budget.end_token_ids has 65 tokens, but must have from 1 to 64",
    ),
    "a start of thinking outside": (
        budget(1, [VOCAB], [2]), "thinking_budget.start_token_ids",
        f"thinking_budget.start_token_ids: token id 5000 {NOT_IN}",
    ),
    "an end of thinking outside": (
        budget(1, [], [2, VOCAB]), "thinking_budget.end_token_ids",
        f"thinking_budget.end_token_ids: token id 5000 {NOT_IN}",
    ),
    "half an end of thinking": (
        {"thinking_budget": ThinkingBudget(1, b"", b"\0" * 6)}, "thinking_budget.end_token_ids",
        "thinking_budget.end_token_ids: a column has 6 bytes, not a multiple of 4",
    ),
    "too many stop ids": (
        {"stop_token_ids": (1,) * 129}, "stop_token_ids", "number of stop_token_ids is 129, but must be from 0 to 128",
    ),
    "a stop id below zero": ({"stop_token_ids": (-1,)}, "stop_token_ids", f"stop_token_ids: token id -1 {NOT_IN}"),
}  # fmt: skip


@pytest.mark.parametrize("fields", ALLOWED.values(), ids=ALLOWED)
def test_a_list_within_its_limits_passes(fields: dict[str, Any]) -> None:
    check(**fields)


@pytest.mark.parametrize(("fields", "param", "message"), REFUSED.values(), ids=REFUSED)
def test_a_list_beyond_a_limit_is_refused(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        check(**fields)
    assert (refused.value.param, str(refused.value)) == (param, message)
    assert not refused.value.exceeds_context
