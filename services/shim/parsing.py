"""From the bytes of a request's body to a checked request, and the sizes that are refused on the way."""

from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError
from starlette.requests import Request

from services.rpc.errors import invalid, too_long
from services.rpc.generated import text_pb2
from services.rpc.mailbox import MAX_MERGED_BYTES
from services.rpc.transport import MAX_MESSAGE_BYTES
from services.shim.schema import GenerationRequest, check_counts, first_error

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_SUBMIT_BYTES = MAX_MESSAGE_BYTES - 2 * MAX_MERGED_BYTES  # others may stand before it in the same message
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


def check(request_type: type[RequestT], raw: dict[str, Any]) -> RequestT:
    check_counts(raw)
    try:
        return request_type.model_validate(raw)
    except ValidationError as error:
        raise first_error(error.errors()) from error


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
