"""Parses a request's body and checks it against the schema, the engine's limits and the shim's own.

A function that "refuses" raises TandemError (INVALID_ARGUMENT), with the field and the limit, where there is one.
Lengths are checked before items, so that a huge request costs little.
"""

from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError
from starlette.requests import Request

from services.rpc.errors import TandemError, invalid, too_long
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.mailbox import MAX_MERGED_BYTES
from services.rpc.transport import MAX_MESSAGE_BYTES
from services.shim.schema import MAX_STOP_STRINGS, GenerationRequest

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_SUBMIT_BYTES = MAX_MESSAGE_BYTES - 2 * MAX_MERGED_BYTES  # other submits may precede it in the same message
MAX_MESSAGE_PARTS = 16384  # messages, their content parts and tool calls
MAX_TOOLS = 1024
RequestT = TypeVar("RequestT", bound=GenerationRequest)


async def read_json(request: Request) -> dict[str, Any]:
    """Returns the body's JSON object without its top-level null fields: null means absent.

    Refuses a body above MAX_BODY_BYTES, and one that is not a JSON object. Raises ClientDisconnect if the client
    disconnects before the end of the body.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise invalid(f"the request body is larger than {MAX_BODY_BYTES} bytes")
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the request body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise invalid("the request body is not a JSON object")
    return {name: value for name, value in content.items() if value is not None}


def validate(request_type: type[RequestT], raw: dict[str, Any], limits: pb.RequestLimits | None) -> RequestT:
    """Returns `raw`, from `read_json`, as a checked request. `limits` None: the engine's are not known yet.

    Refuses a wrong one, with an error about its first fault: limits and counts are checked first, then the schema.
    """
    if limits is not None:
        check_limits(request_type, raw, limits)
    check_counts(raw)
    try:
        return request_type.model_validate(raw)
    except ValidationError as error:
        raise first_error(error.errors()) from error


def check_limits(request_type: type[RequestT], raw: dict[str, Any], limits: pb.RequestLimits) -> None:
    """Refuses an n, a number of logprobs or stop_token_ids above the engine's limits, before anything is allocated.

    Values of a wrong type are left to the schema.
    """
    n = raw.get("n")
    if type(n) is int and n > limits.max_n == limits.max_num_queued_reqs:
        raise invalid(f"n is {n}, but max_num_queued_reqs is {limits.max_num_queued_reqs}", "n")
    for name, limit in (("n", limits.max_n), (request_type.logprobs_field, limits.max_logprobs)):
        if type(raw.get(name)) is int and raw[name] > limit:
            raise invalid(f"{name}: Input should be less than or equal to {limit}", name)
    _check_items(raw, "stop_token_ids", limits.max_stop_token_ids)


def check_counts(raw: dict[str, Any]) -> None:
    """Refuses too many tools or stop strings, or messages, content parts and tool calls in total.

    Values of a wrong type are left to the schema.
    """
    messages = raw.get("messages")
    if isinstance(messages, list):
        count = len(messages) + sum(map(_num_parts, messages))
        if count > MAX_MESSAGE_PARTS:
            raise invalid(
                f"messages: {count} messages, content parts and tool calls, but at most {MAX_MESSAGE_PARTS}", "messages"
            )
    _check_items(raw, "tools", MAX_TOOLS)
    _check_items(raw, "stop", MAX_STOP_STRINGS)


def _check_items(raw: dict[str, Any], name: str, limit: int) -> None:
    if isinstance(raw.get(name), list) and len(raw[name]) > limit:
        raise invalid(f"{name}: {len(raw[name])} items, but at most {limit}", name)


def _num_parts(message: Any) -> int:
    if not isinstance(message, dict):
        return 0
    return sum(len(part) for name in ("content", "tool_calls") if isinstance(part := message.get(name), list))


def first_error(errors: list[Any]) -> TandemError:
    """Returns a TandemError (INVALID_ARGUMENT) of the most specific of pydantic's `errors` on the first wrong field.

    `param` is the path to the value, such as messages.0.content.
    """
    kind, location = errors[0]["type"], errors[0]["loc"]
    if kind == "extra_forbidden":
        param = ".".join(map(str, location))
        return invalid(f"unsupported parameter: {param}", param)
    error = _most_specific(errors)
    param = ".".join(str(step) for step in error["loc"] if not _is_union_member(step))
    if error["type"] == "missing":
        return invalid(f"missing parameter: {param}", param)
    reason = "Input should be an object" if error["type"] in {"model_type", "dict_type"} else error["msg"]
    return invalid(f"{param}: {reason}", param)


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


def check_submit_size(submit: text_pb2.TextSubmit) -> None:
    """Refuses a submit above MAX_SUBMIT_BYTES: in a larger message, it could break the stream that all requests share.

    A submit may be larger than the body: 1e15 becomes 1000000000000000.0.
    """
    size = submit.ByteSize()
    if size > MAX_SUBMIT_BYTES:
        raise invalid(
            f"the request has {size} bytes as an internal message, but at most {MAX_SUBMIT_BYTES} are allowed"
        )


def check_num_choices(submits: list[text_pb2.TextSubmit], limits: pb.RequestLimits) -> None:
    """Refuses more choices, over all prompts, than max_num_queued_reqs: one engine cannot queue them all at once."""
    num_choices = sum(len(submit.choices) for submit in submits)
    if num_choices > limits.max_num_queued_reqs:
        raise invalid(
            f"the request asks for {num_choices} choices, but max_num_queued_reqs is {limits.max_num_queued_reqs}", "n"
        )


def check_prompt_lengths(prompt: Any, max_model_len: int) -> None:
    """Refuses a prompt of `max_model_len` or more token ids. `prompt` is the body's unchecked field; text passes."""
    if not isinstance(prompt, list):
        return
    for ids in prompt if prompt and isinstance(prompt[0], list) else [prompt]:
        if isinstance(ids, list) and len(ids) >= max_model_len and not isinstance(ids[0], str):
            raise too_long(len(ids), max_model_len)
