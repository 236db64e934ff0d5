"""Checks a request right before it enters the core, whatever earlier processes have checked.

Owns the ranges of the sampling parameters. A request that is refused has no effect on other requests.
"""

import math
from dataclasses import dataclass

from engine_core.block_hash import root_hash
from engine_core.kv_groups import capacity_tokens, most_blocks
from engine_core.refusal import RequestRefused
from engine_core.request import Request
from engine_core.step_plan import SamplingParams
from engine_core.token_lists import check_token_ids, check_token_lists
from engine_core.worker_messages import ModelFacts

MAX_N = 128
MAX_SEED = 2**64 - 1
MAX_GRAMMAR_BYTES = 4 * 2**20  # of a grammar's text
MAX_CACHE_SALT, MAX_CACHE_GROUP = 1024, 256  # characters

# Lowest and highest value, both allowed, of the parameters with one range for every model and request.
SAMPLING_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.0, 1e4),
    "max_tokens": (1, math.inf),
    "top_k": (0, 2**31 - 1),
}
ABOVE_LOW = frozenset({"top_p", "repetition_penalty"})  # of these, the lowest value itself is refused


@dataclass(frozen=True)
class NewChoice:
    """One choice of a request, unchecked.

    `resumed_token_ids` are output that an earlier engine generated, `num_cached_tokens` the prompt tokens that it found
    in its prefix cache (None: no engine has admitted the choice yet), `prompt_logprobs_from` the first prompt token
    whose logprobs it has not sent.
    """

    handle: int
    choice: int
    prompt_token_ids: list[int]
    resumed_token_ids: list[int]
    sampling: SamplingParams
    seed: int
    cache_salt: str
    num_cached_tokens: int | None
    priority: int = 0
    grammar: str = ""
    cache_group: str = ""
    prompt_logprobs_from: int = 0


def check_lengths(num_prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
    """Raises RequestRefused if the prompt is empty, or its tokens and max_tokens together exceed max_model_len."""
    if num_prompt_tokens == 0:
        raise RequestRefused("prompt", "the prompt is empty: it needs at least one token")
    if num_prompt_tokens >= max_model_len:
        raise RequestRefused(
            "prompt",
            f"the prompt is too long: it has {num_prompt_tokens} tokens, but this model's maximum context length is"
            f" {max_model_len} tokens, prompt and answer together",
            exceeds_context=True,
        )
    if num_prompt_tokens + max_tokens > max_model_len:
        raise RequestRefused(
            "max_tokens",
            f"max_tokens is {max_tokens} and the prompt has {num_prompt_tokens} tokens, but this model's maximum"
            f" length is {max_model_len} tokens: at most {max_model_len - num_prompt_tokens} are left",
            exceeds_context=True,
        )


def check_capacity(num_prompt_tokens: int, max_tokens: int, facts: ModelFacts) -> None:
    """Raises RequestRefused when the request needs more than the whole KV cache, so that it could never run."""
    needed = num_prompt_tokens + max_tokens - 1  # the last token's KV is never computed
    if most_blocks(facts.kv_groups, 0, needed, facts.block_size) > facts.num_blocks:
        capacity = capacity_tokens(facts.kv_groups, facts.num_blocks, facts.block_size)
        raise RequestRefused(
            "max_tokens",
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {max_tokens}, which needs {needed} tokens of"
            f" KV cache, but all of it holds {capacity}",
        )


def check_sampling(sampling: SamplingParams, facts: ModelFacts) -> None:
    """Raises RequestRefused for a value outside its range, and for a list of token ids beyond its limits.

    The ranges are those of the OpenAI API and of vLLM.
    """
    for param, (low, high) in SAMPLING_RANGES.items():
        _check_range(param, getattr(sampling, param), low, high)
    _check_range("min_tokens", sampling.min_tokens, 0, sampling.max_tokens)
    _check_range("logprobs", sampling.logprobs or 0, 0, facts.max_logprobs)
    _check_range("prompt_logprobs", sampling.prompt_logprobs or 0, 0, facts.max_logprobs)
    check_token_lists(sampling, facts.vocab_size)


def _check_range(param: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also refuses NaN
        allowed = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise RequestRefused(param, f"{param} is {value:g}, but must be {allowed}")
    if param in ABOVE_LOW and value == low:
        raise RequestRefused(param, f"{param} must be greater than {low:g}")


def _check_characters(param: str, value: str, limit: int) -> None:
    if len(value) > limit:
        raise RequestRefused(param, f"{param} has {len(value)} characters, but must have at most {limit}")


def make_request(new: NewChoice, facts: ModelFacts, root_key: bytes) -> Request:
    """Checks one choice and returns it as a Request. Raises RequestRefused when this model cannot serve it.

    `root_key`: the engine's secret for root hashes, 32 bytes or more; the request holds the hash alone.
    """
    sampling = new.sampling
    check_sampling(sampling, facts)
    check_lengths(len(new.prompt_token_ids), sampling.max_tokens, facts.max_model_len)
    check_capacity(len(new.prompt_token_ids), sampling.max_tokens, facts)
    check_token_ids("prompt", new.prompt_token_ids, facts.vocab_size)
    check_token_ids("resumed_token_ids", new.resumed_token_ids, facts.vocab_size)
    if len(new.resumed_token_ids) > sampling.max_tokens:
        raise RequestRefused(
            "resumed_token_ids",
            f"{len(new.resumed_token_ids)} resumed_token_ids are more than max_tokens, {sampling.max_tokens}",
        )
    first, count = new.prompt_logprobs_from, len(new.prompt_token_ids)
    if first > count:
        raise RequestRefused(
            "prompt_logprobs_from", f"prompt_logprobs_from is {first}, but the prompt has {count} tokens"
        )
    if not 0 <= new.seed <= MAX_SEED:
        raise RequestRefused("seed", f"seed is {new.seed}, but must be from 0 to {MAX_SEED}")
    if len(new.grammar.encode()) > MAX_GRAMMAR_BYTES:
        raise RequestRefused("grammar", f"the grammar has more than {MAX_GRAMMAR_BYTES} bytes")
    _check_characters("cache_group", new.cache_group, MAX_CACHE_GROUP)
    _check_characters("cache_salt", new.cache_salt, MAX_CACHE_SALT)
    return Request(
        handle=new.handle,
        sampling=sampling,
        seed=new.seed,
        choice=new.choice,
        token_ids=new.prompt_token_ids + new.resumed_token_ids,
        num_prompt_tokens=len(new.prompt_token_ids),
        root_hash=root_hash(root_key, facts.weights_version, new.cache_group, new.cache_salt),
        priority=new.priority,
        num_cached_tokens=new.num_cached_tokens,
        grammar=new.grammar,
        next_prompt_logprob=max(1, new.prompt_logprobs_from),
    )
