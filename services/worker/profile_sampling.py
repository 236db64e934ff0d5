"""Sampling parameters for the profile run: the plainest, and two that together use all memory that a request can."""

import numpy as np

from engine_core.step_plan import SamplingParams, ThinkingBudget, pack_i32
from engine_core.token_lists import (
    MAX_BAD_WORD_SEQUENCES,
    MAX_BAD_WORD_TOKENS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_THINKING_MARKER_TOKENS,
)


def profile_sampling(vocab_size: int, max_logprobs: int) -> tuple[SamplingParams, ...]:
    """Returns the parameters of all rows of one step each."""
    greedy = SamplingParams(max_tokens=1, temperature=0.0)
    return greedy, everything(vocab_size, logprobs=max_logprobs), everything(vocab_size, scored=MAX_LOGPROB_TOKEN_IDS)


def everything(vocab_size: int, logprobs: int = 0, scored: int = 0, max_tokens: int = 2**31 - 1) -> SamplingParams:
    """Returns parameters that use every option, with the longest lists; `scored`: the number of logprob_token_ids.

    Half of the vocabulary may be sampled, and no end of the answer.
    """
    biased = np.arange(min(MAX_LOGIT_BIAS, vocab_size))
    marker = pack_i32([vocab_size - 1] * MAX_THINKING_MARKER_TOKENS)
    word = pack_i32([vocab_size - 1] * MAX_BAD_WORD_TOKENS)
    return SamplingParams(
        max_tokens=max_tokens, temperature=1.0, top_p=0.9, top_k=50, min_p=0.001, repetition_penalty=1.1,
        presence_penalty=0.1, frequency_penalty=0.1, min_tokens=max_tokens, eos_token_ids=(0,), logprobs=logprobs,
        logit_bias_token_ids=pack_i32(biased), logit_biases=np.full(len(biased), 0.1, dtype="<f4").tobytes(),
        allowed_token_ids=pack_i32(np.arange(0, vocab_size, 2)), bad_words_token_ids=(word,) * MAX_BAD_WORD_SEQUENCES,
        logprob_token_ids=pack_i32([0] * scored), thinking_budget=ThinkingBudget(0, marker, marker),
    )  # fmt: skip
