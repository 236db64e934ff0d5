"""Checks the parameters of a request that are lists of token ids: their limits are here.

Most come as columns of little-endian 32 bits, as a client's process has packed them, so that long ones cost little.
"""

import numpy as np
import numpy.typing as npt

from engine_core.refusal import RequestRefused
from engine_core.step_plan import ITEM_BYTES, SamplingParams, ThinkingBudget, pack_i32, unpack_i32

MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024  # ids
MAX_BIAS = 100.0  # as in OpenAI's API
MAX_BAD_WORDS = 1024  # of a client's request
MAX_BAD_WORD_SEQUENCES = 2 * MAX_BAD_WORDS  # a word may begin a text or follow a space
MAX_BAD_WORD_TOKENS = 32  # ids of one sequence; all sequences take 256 KiB for each slot of a worker
MAX_LOGPROB_TOKEN_IDS = 128
MAX_THINKING_MARKER_TOKENS = 64  # ids of a sequence that begins or ends reasoning
MAX_THINKING_TOKENS = 2**31 - 1


def check_token_lists(sampling: SamplingParams, vocab_size: int) -> None:
    """Raises RequestRefused for an id outside the vocabulary, and for a list or a bias beyond its limit."""
    _check_count("stop_token_ids", len(sampling.stop_token_ids), MAX_STOP_TOKEN_IDS)
    check_token_ids("stop_token_ids", list(sampling.stop_token_ids), vocab_size)
    _check_bias(sampling, vocab_size)
    _check_count("allowed_token_ids", _length("allowed_token_ids", sampling.allowed_token_ids), vocab_size)
    _check_column("allowed_token_ids", sampling.allowed_token_ids, vocab_size)
    _check_bad_words(sampling.bad_words_token_ids, vocab_size)
    _check_that_a_token_is_left(sampling)
    _check_count("logprob_token_ids", _length("logprob_token_ids", sampling.logprob_token_ids), MAX_LOGPROB_TOKEN_IDS)
    _check_column("logprob_token_ids", sampling.logprob_token_ids, vocab_size)
    if sampling.logprob_token_ids and sampling.logprobs is None:
        raise RequestRefused("logprob_token_ids", "logprob_token_ids need logprobs, which the request does not ask for")
    if sampling.thinking_budget is not None:
        _check_thinking_budget(sampling.thinking_budget, vocab_size)


def check_token_ids(param: str, token_ids: list[int], vocab_size: int) -> None:
    """Raises RequestRefused for a token id outside the vocabulary."""
    if token_ids and (max(token_ids) >= vocab_size or min(token_ids) < 0):
        bad = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise _outside(param, bad, vocab_size)


def _check_bias(sampling: SamplingParams, vocab_size: int) -> None:
    count = _length("logit_bias", sampling.logit_bias_token_ids)
    _check_count("logit_bias", count, MAX_LOGIT_BIAS)
    ids = _check_column("logit_bias", sampling.logit_bias_token_ids, vocab_size)
    if len(np.unique(ids)) != count:
        raise RequestRefused("logit_bias", "logit_bias has a token id twice")
    if _length("logit_bias", sampling.logit_biases) != count:
        raise RequestRefused(
            "logit_bias", f"logit_bias has {count} token ids, but {len(sampling.logit_biases) // ITEM_BYTES} values"
        )
    biases = np.frombuffer(sampling.logit_biases, dtype="<f4")
    outside = ~(np.abs(biases) <= MAX_BIAS)  # NaN too
    if outside.any():
        raise RequestRefused(
            "logit_bias",
            f"logit_bias of token id {ids[outside][0]} is {biases[outside][0]:g}, but must be from {-MAX_BIAS:g} to"
            f" {MAX_BIAS:g}",
        )


def _check_bad_words(sequences: tuple[bytes, ...], vocab_size: int) -> None:
    _check_count("bad_words", len(sequences), MAX_BAD_WORD_SEQUENCES)
    lengths = [_length("bad_words", sequence) for sequence in sequences]
    for length in lengths:
        if not 1 <= length <= MAX_BAD_WORD_TOKENS:
            raise RequestRefused(
                "bad_words", f"one of bad_words has {length} tokens, but must have from 1 to {MAX_BAD_WORD_TOKENS}"
            )
    _check_column("bad_words", b"".join(sequences), vocab_size)


def _check_that_a_token_is_left(sampling: SamplingParams) -> None:
    """Raises RequestRefused if the first token could be none of allowed_token_ids. A bias excludes no token."""
    masked = [sequence for sequence in sampling.bad_words_token_ids if len(sequence) == ITEM_BYTES]
    if sampling.min_tokens:
        masked.append(pack_i32([*sampling.eos_token_ids, *sampling.stop_token_ids]))
    ids = unpack_i32(sampling.allowed_token_ids)
    if len(ids) and np.isin(ids, unpack_i32(b"".join(masked))).all():
        raise RequestRefused(
            "allowed_token_ids",
            "allowed_token_ids leave no token to sample: bad_words, or min_tokens before an end of the answer, exclude"
            " each of them",
        )


def _check_thinking_budget(budget: ThinkingBudget, vocab_size: int) -> None:
    if not 0 <= budget.max_tokens <= MAX_THINKING_TOKENS:
        raise RequestRefused(
            "thinking_token_budget",
            f"thinking_token_budget is {budget.max_tokens}, but must be from 0 to {MAX_THINKING_TOKENS}",
        )
    most = MAX_THINKING_MARKER_TOKENS
    for name, column, least in (("start", budget.start_token_ids, 0), ("end", budget.end_token_ids, 1)):
        param = f"thinking_budget.{name}_token_ids"
        count = _length(param, column)
        if not least <= count <= most:
            raise RequestRefused(param, f"{param} has {count} tokens, but must have from {least} to {most}")
        _check_column(param, column, vocab_size)


def _check_count(param: str, count: int, limit: int) -> None:
    if count > limit:
        raise RequestRefused(param, f"number of {param} is {count}, but must be from 0 to {limit}")


def _length(param: str, column: bytes) -> int:
    if len(column) % ITEM_BYTES:
        raise RequestRefused(param, f"{param}: a column has {len(column)} bytes, not a multiple of {ITEM_BYTES}")
    return len(column) // ITEM_BYTES


def _check_column(param: str, column: bytes, vocab_size: int) -> npt.NDArray[np.uint32]:
    """Returns the ids of a column, [ids] uint32. Raises RequestRefused for one outside the vocabulary."""
    ids = np.frombuffer(column, dtype="<u4")
    if ids.max(initial=0) >= vocab_size:
        raise _outside(param, int(ids[ids >= vocab_size][0]), vocab_size)
    return ids


def _outside(param: str, token_id: int, vocab_size: int) -> RequestRefused:
    return RequestRefused(param, f"{param}: token id {token_id} is not in the vocabulary of {vocab_size} tokens")
