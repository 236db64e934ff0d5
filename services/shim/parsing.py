"""From the bytes of a request's body to a checked request, and the sizes that are refused on the way."""

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
MAX_SUBMIT_BYTES = MAX_MESSAGE_BYTES - 2 * MAX_MERGED_BYTES  # others may stand before it in the same message
MAX_MESSAGE_PARTS = 16384  # messages, their content parts and tool calls
MAX_TOOLS = 1024
RequestT = TypeVar("RequestT", bound=GenerationRequest)


async def read_json(request: Request) -> dict[str, Any]:
    """The body as a JSON object without its nulls: null means absent. Raises TandemError."""
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


def check(request_type: type[RequestT], raw: dict[str, Any], limits: pb.RequestLimits) -> RequestT:
    """The checked request. Raises TandemError that names the first field at fault."""
    check_limits(request_type, raw, limits)
    check_counts(raw, limits)
    try:
        return request_type.model_validate(raw)
    except ValidationError as error:
        raise first_error(error.errors()) from error


def check_limits(request_type: type[RequestT], raw: dict[str, Any], limits: pb.RequestLimits) -> None:
    """Refuses a number above the engine's limit before anything of that size exists; wrong types are left to the
    schema. Raises TandemError."""
    n = raw.get("n")
    if type(n) is int and n > limits.max_n == limits.max_num_queued_reqs:
        raise invalid(f"n is {n}, but max_num_queued_reqs is {limits.max_num_queued_reqs}", "n")
    for name, limit in (("n", limits.max_n), (request_type.logprobs_field, limits.max_logprobs)):
        if type(raw.get(name)) is int and raw[name] > limit:
            raise invalid(f"{name}: Input should be less than or equal to {limit}", name)


def check_counts(raw: dict[str, Any], limits: pb.RequestLimits) -> None:
    """What is too much is refused before each of its items is looked at. Raises TandemError."""
    messages = raw.get("messages")
    if isinstance(messages, list):
        count = len(messages) + sum(map(_num_parts, messages))
        if count > MAX_MESSAGE_PARTS:
            raise invalid(f"messages: {count} messages and parts of them, but at most {MAX_MESSAGE_PARTS}", "messages")
    max_items = {"tools": MAX_TOOLS, "stop": MAX_STOP_STRINGS, "stop_token_ids": limits.max_stop_token_ids}
    for name, limit in max_items.items():
        if isinstance(raw.get(name), list) and len(raw[name]) > limit:
            raise invalid(f"{name}: {len(raw[name])} items, but at most {limit}", name)


def _num_parts(message: Any) -> int:
    if not isinstance(message, dict):
        return 0
    return sum(len(part) for name in ("content", "tool_calls") if isinstance(part := message.get(name), list))


def first_error(errors: list[Any]) -> TandemError:
    """Pydantic's errors as one TandemError that names the field. An unknown field is told as such."""
    kind, location = errors[0]["type"], errors[0]["loc"]
    if kind == "extra_forbidden":
        param = ".".join(map(str, location))
        return invalid(f"unsupported parameter: {param}", param)
    error = _meant(errors)
    param = ".".join(str(step) for step in error["loc"] if not _is_alternative(step))
    if error["type"] == "missing":
        return invalid(f"missing parameter: {param}", param)
    reason = "Input should be an object" if error["type"] in {"model_type", "dict_type"} else error["msg"]
    return invalid(f"{param}: {reason}", param)


def _is_alternative(step: str | int) -> bool:
    """Steps of a union ("str", "list[...]") are pydantic's, not the client's."""
    return isinstance(step, str) and (step == "str" or not step.isidentifier())


def _meant(errors: list[Any]) -> Any:
    """Of the first field's errors, one of the alternative that the client most likely meant: no wrong type, if there
    is one, and the furthest on."""
    at = next((place for place, step in enumerate(errors[0]["loc"]) if _is_alternative(step)), None)
    if at is None:
        return errors[0]

    def rank(error: Any) -> tuple[bool, list[int]]:
        return not error["type"].endswith("_type"), [step for step in error["loc"][at:] if isinstance(step, int)]

    return max((error for error in errors if error["loc"][:at] == errors[0]["loc"][:at]), key=rank)


def check_size(submit: text_pb2.TextSubmit) -> None:
    """A number written in three characters may take twenty on its way: what no message can hold would end the stream
    that all requests share. Raises TandemError."""
    size = submit.ByteSize()
    if size > MAX_SUBMIT_BYTES:
        raise invalid(f"the request takes {size} bytes between the processes, but at most {MAX_SUBMIT_BYTES} fit")


def check_token_counts(prompt: Any, max_model_len: int) -> None:
    """Token ids that cannot fit are refused before anything is done with them, one by one. Raises TandemError."""
    if not isinstance(prompt, list):
        return
    for ids in prompt if prompt and isinstance(prompt[0], list) else [prompt]:
        if isinstance(ids, list) and len(ids) >= max_model_len and not isinstance(ids[0], str):
            raise too_long(len(ids), max_model_len)
