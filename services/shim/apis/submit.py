"""Builds the part of a submit for the tokenizer that does not depend on the API."""

from collections.abc import Iterable
from dataclasses import dataclass

from services.rpc.columns import pack_f32, pack_u32
from services.rpc.errors import invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.apis.request import GenerationRequest


@dataclass(frozen=True)
class SubmitContext:
    """What a submit needs beside the request: the facts of the engine, and options.

    `cache_group`: group of the caller's key; requests of different groups share no prefix cache blocks.
    """

    facts: pb.EngineFacts
    exclude_tools_when_tool_choice_none: bool = False
    cache_group: str = ""
    response_role: str = "assistant"


def base_submit(request: GenerationRequest, context: SubmitContext) -> text_pb2.TextSubmit:
    """Returns a submit without input. `Generations.start` sets its request id, its handles and its traceparent.

    Raises TandemError (INVALID_ARGUMENT) for logprobs of all tokens, or a truncation, beyond the engine's limits.
    """
    return text_pb2.TextSubmit(
        seed=_seed(request.seed),
        choices=[pb.Choice(choice=choice) for choice in range(request.n)],
        sampling=_sampling(request, context.facts),
        cache_salt=request.cache_salt,
        cache_group=context.cache_group,
        priority=request.priority,
        output=text_pb2.OutputSpec(
            stop=request.stop_strings,
            include_stop_str_in_output=request.include_stop_str_in_output,
            skip_special_tokens=request.skip_special_tokens,
            spaces_between_special_tokens=request.spaces_between_special_tokens,
            bad_words=request.bad_words,
        ),
        truncation=_truncation(request, context.facts.max_model_len),
        return_sampling=request.return_effective_parameters,
    )


def add_form(output: text_pb2.OutputSpec, form: text_pb2.StructuredOutput | None) -> None:
    if form is not None:
        output.structured.CopyFrom(form)


def _sampling(request: GenerationRequest, facts: pb.EngineFacts) -> pb.SamplingParams:
    sampling = pb.SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        max_tokens=None if request.token_limit is None else max(1, request.token_limit),
        min_tokens=request.min_tokens,
        ignore_eos=request.ignore_eos,
        stop_token_ids=request.stop_token_ids,
        logprobs=_num_logprobs(request.num_logprobs, request.logprobs_field, facts),
        prompt_logprobs=_num_logprobs(request.num_prompt_logprobs, "prompt_logprobs", facts),
        allowed_token_ids=_column(request.allowed_token_ids),
        logprob_token_ids=_column(request.logprob_token_ids),
    )
    if request.logit_bias:
        sampling.logit_bias_token_ids = pack_u32([int(token_id) for token_id in request.logit_bias])
        sampling.logit_biases = pack_f32(request.logit_bias.values())
    return sampling


def _seed(seed: int | None) -> int | None:
    """Returns the seed as an unsigned number of 64 bits; None for -1, which vLLM takes as no seed."""
    return None if seed is None or seed == -1 else seed % 2**64


def _num_logprobs(count: int | None, name: str, facts: pb.EngineFacts) -> int | None:
    if count != -1:
        return count
    if facts.limits.max_logprobs < facts.vocab_size:
        raise invalid(f"{name} is -1, but at most {facts.limits.max_logprobs} are allowed; see --max-logprobs", name)
    return facts.vocab_size


def _truncation(request: GenerationRequest, max_model_len: int) -> text_pb2.Truncation | None:
    length = request.truncate_prompt_tokens
    if length is None:
        return None
    if length >= max_model_len:
        raise invalid(
            f"truncate_prompt_tokens is {length}, but this model's maximum context length is {max_model_len} tokens",
            "truncate_prompt_tokens",
        )
    drop_end = request.truncation_side == "right"
    return text_pb2.Truncation(max_tokens=None if length == -1 else length, drop_end=drop_end)


def _column(token_ids: Iterable[int] | None) -> bytes:
    return b"" if token_ids is None else pack_u32(token_ids)
