"""Converts between the gRPC messages of the engine's edge and the types of the engine core."""

import msgspec

from engine_core.events import Finished, SchedulerStats
from engine_core.request import Stop
from engine_core.request_check import NewChoice
from engine_core.step_plan import PromptLogprobs, SamplingParams, ThinkingBudget
from engine_core.token_lists import MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_LOGPROB_TOKEN_IDS, MAX_STOP_TOKEN_IDS
from engine_core.worker_messages import ModelFacts, SamplingDefaults
from services.rpc.columns import unpack_u32
from services.rpc.errors import TandemError, invalid
from services.rpc.finish_reasons import REASON_BY_NAME
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2


def sampling_params(sampling: pb.SamplingParams, facts: ModelFacts, num_prompt_tokens: int) -> SamplingParams:
    """Returns the request's sampling parameters. A field left out gets the model's default, else OpenAI's; max_tokens
    the rest of max_model_len after `num_prompt_tokens`, or a lower default, at least 1."""
    defaults: SamplingDefaults = facts.sampling_defaults

    def pick(name: str, default: float) -> float:
        return float(getattr(sampling, name)) if sampling.HasField(name) else default

    left = facts.max_model_len - num_prompt_tokens
    default_max = left if defaults.max_tokens is None else min(left, defaults.max_tokens)
    return SamplingParams(
        max_tokens=sampling.max_tokens if sampling.HasField("max_tokens") else max(1, default_max),
        temperature=pick("temperature", defaults.temperature),
        top_p=pick("top_p", defaults.top_p),
        top_k=max(0, int(pick("top_k", defaults.top_k))),
        min_p=pick("min_p", defaults.min_p),
        presence_penalty=pick("presence_penalty", 0.0),
        frequency_penalty=pick("frequency_penalty", 0.0),
        repetition_penalty=pick("repetition_penalty", defaults.repetition_penalty),
        min_tokens=sampling.min_tokens,
        eos_token_ids=facts.eos_token_ids,
        stop_token_ids=tuple(sampling.stop_token_ids),
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        ignore_eos=sampling.ignore_eos,
        logit_bias_token_ids=sampling.logit_bias_token_ids,
        logit_biases=sampling.logit_biases,
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words_token_ids=tuple(sampling.bad_words_token_ids),
        logprob_token_ids=sampling.logprob_token_ids,
        thinking_budget=_thinking_budget(sampling),
        prompt_logprobs=sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else None,
    )


def _thinking_budget(sampling: pb.SamplingParams) -> ThinkingBudget | None:
    if not sampling.HasField("thinking_budget"):
        return None
    budget = sampling.thinking_budget
    return ThinkingBudget(budget.max_tokens, budget.start_token_ids, budget.end_token_ids, budget.starts_open)


def effective_sampling(params: SamplingParams) -> pb.SamplingParams:
    """Returns the parameters as a message, with every default filled in, without the columns of token ids."""
    return pb.SamplingParams(
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        min_tokens=params.min_tokens,
        ignore_eos=params.ignore_eos,
        stop_token_ids=params.stop_token_ids,
        logprobs=params.logprobs,
    )


def new_choices(submit: engine_pb2.Submit, facts: ModelFacts, handles: list[int], seed: int) -> list[NewChoice]:
    """Returns one NewChoice per choice of the submit. `handles` are the engine core's, in the order of the choices.

    Raises ValueError for a malformed column of token ids.
    """
    prompt = unpack_u32(submit.prompt_token_ids)
    sampling = sampling_params(submit.sampling, facts, len(prompt))
    unscored = msgspec.structs.replace(sampling, prompt_logprobs=None)
    grammar = submit.grammar  # one string for all choices
    return [
        NewChoice(
            handle=handle,
            choice=choice.choice,
            prompt_token_ids=prompt,
            resumed_token_ids=unpack_u32(choice.resumed_token_ids),
            sampling=sampling if choice.choice == 0 else unscored,
            seed=seed,
            cache_salt=submit.cache_salt,
            cache_group=submit.cache_group,
            priority=submit.priority,
            grammar=grammar,
            num_cached_tokens=choice.cached_tokens if choice.HasField("cached_tokens") else None,
            prompt_logprobs_from=choice.prompt_logprobs_from,
        )
        for handle, choice in zip(handles, submit.choices, strict=True)
    ]


def engine_facts(facts: ModelFacts, max_num_seqs: int, max_n: int, max_num_queued_reqs: int) -> pb.EngineFacts:
    """Returns the model's facts and request limits for the engine's hello. `max_n` is the largest n of a request."""
    return pb.EngineFacts(
        served_model_names=facts.served_model_names,
        max_model_len=facts.max_model_len,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        block_size=facts.block_size,
        kv_groups=[
            pb.KvGroup(kind="window" if group.window else "full", num_blocks=facts.num_blocks, window=group.window)
            for group in facts.kv_groups
        ],
        kv_cache_tokens=int(facts.kv_cache_concurrency * facts.max_model_len),
        limits=pb.RequestLimits(
            max_logprobs=facts.max_logprobs,
            max_n=max_n,
            max_num_seqs=max_num_seqs,
            max_num_queued_reqs=max_num_queued_reqs,
            max_stop_token_ids=MAX_STOP_TOKEN_IDS,
            max_logit_bias=MAX_LOGIT_BIAS,
            max_logprob_token_ids=MAX_LOGPROB_TOKEN_IDS,
            max_bad_words=MAX_BAD_WORDS,
        ),
        numerics_id=facts.numerics_id,
        weights_version=facts.weights_version,
        model=facts.model,
        default_sampling=default_sampling(facts.sampling_defaults),
    )


def default_sampling(defaults: SamplingDefaults) -> pb.SamplingParams:
    """Returns the values of what a request leaves out."""
    return pb.SamplingParams(
        temperature=defaults.temperature,
        top_p=defaults.top_p,
        top_k=defaults.top_k,
        min_p=defaults.min_p,
        repetition_penalty=defaults.repetition_penalty,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        max_tokens=defaults.max_tokens,
    )


def engine_stats(stats: SchedulerStats) -> engine_pb2.EngineStats:
    return engine_pb2.EngineStats(**{name: getattr(stats, name) for name in SchedulerStats.__dataclass_fields__})


def terminal(handle: int, finished: Finished, facts: ModelFacts) -> engine_pb2.Terminal:
    """Returns the terminal message of a choice that `finished`; `handle` is the tokenizer's."""
    stop = finished.stop
    return engine_pb2.Terminal(
        handle=handle,
        reason=REASON_BY_NAME[stop.reason],
        stop_token_id=stop.stop_token_id,
        prompt_tokens=finished.num_prompt_tokens,
        output_tokens=finished.num_output_tokens,
        cached_tokens=finished.num_cached_tokens,
        error=_error(stop),
        numerics_id=facts.numerics_id,
        weights_version=facts.weights_version,
    )


def prompt_logprobs(handle: int, scored: PromptLogprobs) -> pb.PromptLogprobs:
    """Returns the message; `handle` is the tokenizer's."""
    return pb.PromptLogprobs(
        handle=handle,
        start_index=scored.start_index,
        width=scored.width,
        token_ids=scored.token_ids,
        logprobs=scored.logprobs,
        ranks=scored.ranks,
    )


def _error(stop: Stop) -> pb.Error | None:
    if stop.reason != "error":
        return None
    error = invalid(stop.message, stop.param) if stop.param else TandemError("INTERNAL", stop.message)
    return error.to_proto()
