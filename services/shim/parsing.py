"""Checks a request against the engine's limits, the schema and the shim's own limits.

A function that "refuses" raises TandemError (INVALID_ARGUMENT), with the field and the limit, where there is one.
Lengths are checked before items, so that a huge request costs little.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from pydantic import ValidationError

from services.rpc.channel_options import MAX_MESSAGE_BYTES
from services.rpc.errors import TandemError, invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.mailbox import MAX_MERGED_BYTES
from services.rpc.output_limits import MAX_STOP_STRINGS
from services.rpc.prompt_limits import check_num_ids
from services.shim.apis.chat.tools import MAX_TOOLS
from services.shim.apis.fields import kind_in
from services.shim.apis.request import GenerationRequest

MAX_SUBMIT_BYTES = MAX_MESSAGE_BYTES - 2 * MAX_MERGED_BYTES  # other submits may precede it in the same message
MAX_MESSAGE_PARTS = 16384  # messages, their content parts and tool calls
UNKNOWN = "extra_forbidden"  # pydantic's type of error
JSON_WORDS = {"True": "true", "False": "false", "None": "null"}
RequestT = TypeVar("RequestT", bound=GenerationRequest)


def validate(
    request_type: type[RequestT],
    fields: dict[str, Any],
    facts: pb.EngineFacts | None,
    ignore_unknown_fields: bool = False,
) -> RequestT:
    """Returns the fields of a body as a checked request. `facts` None: the engine's are not known yet.

    Refuses a wrong one, with an error about its first fault: limits and counts are checked first, then the schema.
    Unknown fields are refused as well, unless they are to be ignored: they are then removed from `fields`.
    """
    if facts is not None:
        check_limits(request_type, fields, facts)
    check_counts(fields)
    try:
        return request_type.model_validate(fields)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        if ignore_unknown_fields and any(one["type"] == UNKNOWN for one in errors):
            for one in errors:
                if one["type"] == UNKNOWN:
                    _remove(fields, one["loc"])
            return validate(request_type, fields, facts)
        raise first_error(request_type, errors) from error


def check_limits(request_type: type[RequestT], fields: dict[str, Any], facts: pb.EngineFacts) -> None:
    """Refuses an n, a number of logprobs or ids, or a prompt above the engine's limits, before anything is allocated.

    Values of a wrong type are left to the schema.
    """
    limits = facts.limits
    n = fields.get("n")
    if type(n) is int and n > limits.max_n == limits.max_num_queued_reqs:
        raise invalid(f"n is {n}, but max_num_queued_reqs is {limits.max_num_queued_reqs}", "n")
    most = limits.max_logprobs
    for name, limit in (("n", limits.max_n), (request_type.logprobs_field, most), ("prompt_logprobs", most)):
        if type(fields.get(name)) is int and fields[name] > limit:
            raise invalid(f"{name}: Input should be less than or equal to {limit}", name)
    for name, limit in (
        ("stop_token_ids", limits.max_stop_token_ids),
        ("logit_bias", limits.max_logit_bias),
        ("logprob_token_ids", limits.max_logprob_token_ids),
        ("bad_words", limits.max_bad_words),
        ("allowed_token_ids", facts.vocab_size),
    ):
        _check_items(fields, name, limit)
    check_prompt_lengths(
        fields.get("prompt"), facts.max_model_len, truncated=fields.get("truncate_prompt_tokens") is not None
    )


def check_counts(fields: dict[str, Any]) -> None:
    """Refuses too many tools, functions or stop strings, or messages, content parts and tool calls in total.

    Values of a wrong type are left to the schema.
    """
    messages = fields.get("messages")
    if isinstance(messages, list):
        count = len(messages) + sum(map(_num_parts, messages))
        if count > MAX_MESSAGE_PARTS:
            raise invalid(
                f"messages: {count} messages, content parts and tool calls, but at most {MAX_MESSAGE_PARTS}", "messages"
            )
    _check_items(fields, "tools", MAX_TOOLS)
    _check_items(fields, "functions", MAX_TOOLS)
    _check_items(fields, "stop", MAX_STOP_STRINGS)


def check_count(name: str, count: int, limit: int) -> None:
    """Refuses a field with more than `limit` items."""
    if count > limit:
        raise invalid(f"{name}: {count} items, but at most {limit}", name)


def _check_items(fields: dict[str, Any], name: str, limit: int) -> None:
    if isinstance(fields.get(name), list | dict):
        check_count(name, len(fields[name]), limit)


def _num_parts(message: Any) -> int:
    if not isinstance(message, dict):
        return 0
    content, calls = message.get("content"), message.get("tool_calls")
    return (len(content) if isinstance(content, list) else 0) + (len(calls) if isinstance(calls, list) else 0)


def _remove(fields: dict[str, Any], path: tuple[str | int, ...]) -> None:
    """Removes the field at `path`, from pydantic's error about it, in place."""
    *parents, name = path
    owner: Any = fields
    for parent in _fields_of(parents):
        owner = owner[parent]
    owner.pop(name, None)


def first_error(request_type: type[GenerationRequest], errors: list[Any]) -> TandemError:
    """Returns a TandemError (INVALID_ARGUMENT) of the most specific of pydantic's `errors` on the first wrong field.

    `param` is the path to the value, such as messages.0.content. A field of a feature that tandem lacks is named so.
    """
    kind, location = errors[0]["type"], errors[0]["loc"]
    if kind == UNKNOWN:
        param = ".".join(map(str, (*_fields_of(location[:-1]), location[-1])))
        return invalid(f"unsupported parameter: {param}", param)
    error = _most_specific(errors)
    param = ".".join(map(str, _fields_of(error["loc"])))
    if error["type"] == "missing":
        return invalid(f"missing parameter: {param}", param)
    reason = "Input should be an object" if error["type"] in {"model_type", "dict_type"} else error["msg"]
    reason = re.sub(r"\b(True|False|None)\b", lambda word: JSON_WORDS[word[0]], reason)
    field_kind = kind_in(request_type, str(location[0]))
    if field_kind == "refused":
        return invalid(f"{location[0]} is not supported by this server: {reason}", str(location[0]))
    if field_kind == "no-op" and error["type"] == "literal_error":
        return invalid(f"{param}: another value is not supported by this server: {reason}", param)
    return invalid(f"{param}: {reason}", param)


def _fields_of(path: Iterable[str | int]) -> Iterator[str | int]:
    """Yields the steps of an error's path that are fields or indices."""
    return (step for step in path if not _is_union_member(step))


def _is_union_member(step: str | int) -> bool:
    """Returns whether a step of an error's path is a union's member ("str", "list[...]"), not a field or an index."""
    return isinstance(step, str) and (step == "str" or not step.isidentifier())


def _most_specific(errors: list[Any]) -> Any:
    """Returns the error to show among those of the first field: pydantic reports one for each member of a union.

    An error that is not about a wrong type comes first, then the one furthest into the value.
    """
    at = next((place for place, step in enumerate(errors[0]["loc"]) if _is_union_member(step)), None)
    if at is None:
        return errors[0]

    def rank(error: Any) -> tuple[bool, list[int]]:
        return not error["type"].endswith("_type"), [step for step in error["loc"][at:] if isinstance(step, int)]

    return max((error for error in errors if error["loc"][:at] == errors[0]["loc"][:at]), key=rank)


def check_submit_size(submit: text_pb2.TextSubmit) -> int:
    """Returns a submit's size in bytes. Refuses one above MAX_SUBMIT_BYTES: in a larger message, it could break the
    stream that all requests share.

    A submit may be larger than the body: 1e15 becomes 1000000000000000.0 in the template's variables.
    """
    size = submit.ByteSize()
    if size > MAX_SUBMIT_BYTES:
        raise invalid(
            f"the request has {size} bytes as an internal message, but at most {MAX_SUBMIT_BYTES} are allowed"
        )
    return size


def check_num_choices(submits: list[text_pb2.TextSubmit], limits: pb.RequestLimits) -> None:
    """Refuses more choices, over all prompts, than max_num_queued_reqs: one engine cannot queue them all at once."""
    num_choices = sum(len(submit.choices) for submit in submits)
    if num_choices > limits.max_num_queued_reqs:
        raise invalid(
            f"the request asks for {num_choices} choices, but max_num_queued_reqs is {limits.max_num_queued_reqs}", "n"
        )


def check_prompt_lengths(prompt: Any, max_model_len: int, *, truncated: bool) -> None:
    """Refuses prompts with too many token ids, as `check_num_ids`. `prompt` is the body's unchecked field; text
    passes."""
    if not isinstance(prompt, list):
        return
    for ids in prompt if prompt and isinstance(prompt[0], list) else [prompt]:
        if isinstance(ids, list) and ids and not isinstance(ids[0], str):
            check_num_ids(len(ids), max_model_len, truncated=truncated)
