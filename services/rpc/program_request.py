"""The requests of programs to tokenizer and engine: their choices, the names of their fields, their metadata.

Generate is an adapter over the path of Connect: a request becomes the submit of a stream with one request. Both
services' messages have equal field names.
"""

import re
from typing import Any

import grpc

from services.rpc.columns import pack_u32
from services.rpc.errors import invalid
from services.rpc.generated import common_pb2 as pb

PARTS = ("sampling", "output", "truncation")  # of a request
# Where programs set what the checks, which are HTTP's as well, know by other names.
FIELDS = {
    "messages": "chat.messages_json",
    "prompt": "prompt_token_ids",
    "tools": "output.tools_json",
    "chat_template": "chat.chat_template",
    "chat_template_kwargs": "chat.template_kwargs_json",
    "truncate_prompt_tokens": "truncation.max_tokens",
    "resumed_token_ids": "resume.choices",
    "prompt_logprobs_from": "resume.choices",
    "logit_bias": "sampling.logit_bias_token_ids",
    "bad_words": "sampling.bad_words_token_ids",
    "thinking_token_budget": "sampling.thinking_budget.max_tokens",
    "thinking_budget.start_token_ids": "sampling.thinking_budget.start_token_ids",
    "thinking_budget.end_token_ids": "sampling.thinking_budget.end_token_ids",
}


def choices_of(request: Any, max_n: int, max_model_len: int) -> list[pb.Choice]:
    """Returns the choices of a GenerateTextRequest or GenerateTokensRequest: all, or those that it resumes.

    A choice's handle is its index. Raises TandemError (INVALID_ARGUMENT) for an n above `max_n`, and for resumed
    choices that do not exist, are named twice, or have `max_model_len` tokens or more.
    """
    n = request.n or 1
    if n > max_n:
        raise invalid(f"n is {n}, but must be at most {max_n}", "n")
    if not request.HasField("resume"):
        return [pb.Choice(handle=index, choice=index) for index in range(n)]
    resume = request.resume
    indices = [choice.index for choice in resume.choices]
    if not indices or len(set(indices)) < len(indices) or max(indices) >= n:
        raise invalid(
            f"resume.choices: their indices must be different, at least one, and below n ({n})", "resume.choices"
        )
    longest = max(len(choice.token_ids) for choice in resume.choices)
    if longest >= max_model_len:
        raise invalid(
            f"resume.choices: one has {longest} token_ids, but this model's maximum context length is {max_model_len}",
            "resume.choices",
        )
    cached = resume.started.cached_tokens if resume.HasField("started") else None
    return [
        pb.Choice(
            handle=choice.index,
            choice=choice.index,
            resumed_token_ids=pack_u32(choice.token_ids),
            cached_tokens=cached,
            prompt_logprobs_from=choice.prompt_logprobs_from,
        )
        for choice in resume.choices
    ]


def check_numerics(request: Any, numerics_id: str) -> None:
    """Raises TandemError (INVALID_ARGUMENT) for a resume of an answer that began with another numerics_id."""
    began = request.resume.started.numerics_id
    if began and began != numerics_id:
        raise invalid(
            f"the answer began with numerics_id {began!r}, but this process has {numerics_id!r}, another model or other"
            " options: its tokens would not continue the answer; send the request anew",
            "resume.started.numerics_id",
        )


def field_of(request: Any, param: str) -> str:
    """Returns the path of a field in a request, from its name in an error; the name itself if there is no such path."""
    name = re.sub(r"\.\d.*", "", param)  # without the index of an item
    if name == "prompt" and "input" in request.DESCRIPTOR.oneofs_by_name:
        return str(request.WhichOneof("input") or "input")
    for field in request.DESCRIPTOR.fields:
        if field.name == name:
            return name
        if field.name in PARTS and name in field.message_type.fields_by_name:
            return f"{field.name}.{name}"
    return FIELDS.get(name, param)


def traceparent_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Returns the call's W3C trace context, from its metadata; empty: none."""
    values = [value for key, value in context.invocation_metadata() or () if key == "traceparent"]
    return values[0] if values and isinstance(values[0], str) else ""


def attempt_of(request: Any) -> int:
    """Returns the attempt for the submit: no queue limit refuses one above 1."""
    return 2 if request.HasField("resume") else 1
