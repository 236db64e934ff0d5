"""Ends a program's gRPC call with an error: status, message, and details as google.rpc messages.

https://google.aip.dev/193 · https://github.com/googleapis/googleapis/blob/master/google/rpc/error_details.proto
"""

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2

from services.rpc.errors import RETRY_AFTER_SECONDS, TandemError

AnswerT = TypeVar("AnswerT")
DETAILS_KEY = "grpc-status-details-bin"  # where clients of all languages look for google.rpc.Status
DOMAIN = "tandem"
NO_PROCESS = "NO_PROCESS"  # ErrorInfo's reason if a process behind the called one is missing
MAX_MESSAGE_BYTES = 1000  # of UTF-8: clients refuse more than 8 KiB of metadata, where each byte may take three


async def abort(
    context: grpc.aio.ServicerContext[Any, Any], error: TandemError, *, field: str | None = None
) -> NoReturn:
    """Ends the call with the error's status. `field`: the path of the field at fault; None: the error's own name of it.

    The details are BadRequest with the field, RetryInfo for what HTTP answers with 429 or 503, and ErrorInfo with
    OpenAI's error code, as far as they apply.
    """
    code, message = error.status.grpc, _shortened(error.message)
    status = status_pb2.Status(
        code=code_pb2.Code.Value(code),
        message=message,
        details=[_packed(detail) for detail in details(error, error.param if field is None else field)],
    )
    metadata = ((DETAILS_KEY, status.SerializeToString()),)
    await context.abort(grpc.StatusCode[code], message, trailing_metadata=metadata)


async def answered(
    context: grpc.aio.ServicerContext[Any, Any], answer: Awaitable[AnswerT], field_of: Callable[[str], str] = str
) -> AnswerT:
    """Returns the answer of a unary call. Ends the call as `abort` does if the answer raises a TandemError. `field_of`
    returns the program's name of the field at fault."""
    try:
        return await answer
    except TandemError as error:
        await abort(context, error, field=field_of(error.param))


def details(error: TandemError, field: str) -> list[Any]:
    """Returns the google.rpc messages that tell more of the error than its status. `field`: empty: none."""
    found: list[Any] = []
    if error.status.grpc == "INVALID_ARGUMENT":
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=_shortened(error.message))
        found.append(error_details_pb2.BadRequest(field_violations=[violation] if field else []))
    if error.status.http in (429, 503):
        delay = Duration(seconds=error.retry_after or RETRY_AFTER_SECONDS)
        found.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if error.code == "UNAVAILABLE":
        found.append(error_details_pb2.ErrorInfo(reason=NO_PROCESS, domain=DOMAIN))
    elif error.reason:
        found.append(error_details_pb2.ErrorInfo(reason=error.reason.upper(), domain=DOMAIN))
    return found


def _packed(detail: Any) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(detail)
    return packed


def _shortened(message: str) -> str:
    """Returns at most MAX_MESSAGE_BYTES bytes of the message, in whole characters."""
    return message.encode(errors="replace")[:MAX_MESSAGE_BYTES].decode(errors="ignore")


def retry_seconds(error: grpc.aio.AioRpcError) -> float:
    """Returns after how many seconds a call that failed may be made again: its RetryInfo, else RETRY_AFTER_SECONDS."""
    info = _detail(error, error_details_pb2.RetryInfo())
    return RETRY_AFTER_SECONDS if info is None else float(info.retry_delay.ToTimedelta().total_seconds())


def lacks_process(error: grpc.aio.AioRpcError) -> bool:
    """Returns whether a call failed because a process behind the called one is missing: it may restart."""
    info = _detail(error, error_details_pb2.ErrorInfo())
    return info is not None and bool(info.reason == NO_PROCESS)


def _detail(error: grpc.aio.AioRpcError, empty: Any) -> Any:
    """Returns the detail of the error that has the type of `empty`, which it fills; None if there is none."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(empty):
                    return empty
    return None
