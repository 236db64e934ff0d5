"""Errors as the status of a program's call: code, message, details."""

from typing import Any, NoReturn

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from services.rpc.errors import CONTEXT_LENGTH_EXCEEDED, STATUS, TandemError, invalid, too_much, unavailable
from services.rpc.status import DETAILS_KEY, MAX_MESSAGE_BYTES, NO_PROCESS, abort, answered


class Context:
    """Keeps how the call ended."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Any) -> NoReturn:
        self.code, self.details, self.metadata = code, details, dict(trailing_metadata)
        raise grpc.aio.AbortError


async def ended(error: TandemError, **more: Any) -> tuple[Context, dict[str, Any]]:
    """Returns the context of a call that ended with the error, and its details by name."""
    context: Any = Context()
    with pytest.raises(grpc.aio.AbortError):
        await abort(context, error, **more)
    status = status_pb2.Status.FromString(context.metadata[DETAILS_KEY])
    assert (status.code, status.message) == (context.code.value[0], context.details)
    found = {}
    for packed in status.details:
        name = packed.TypeName().removeprefix("google.rpc.")
        found[name] = getattr(error_details_pb2, name)()
        assert packed.Unpack(found[name])
    return context, found


@pytest.mark.parametrize("code", STATUS)
async def test_every_error_has_a_status(code: str) -> None:
    context, _ = await ended(TandemError(code, "what happened"))
    assert context.code == grpc.StatusCode[STATUS[code].grpc]
    assert context.details == "what happened"


async def test_an_invalid_argument_names_its_field() -> None:
    _, details = await ended(invalid("n is 0", "n", CONTEXT_LENGTH_EXCEEDED))
    assert [(one.field, one.description) for one in details["BadRequest"].field_violations] == [("n", "n is 0")]
    assert (details["ErrorInfo"].reason, details["ErrorInfo"].domain) == ("CONTEXT_LENGTH_EXCEEDED", "tandem")
    _, details = await ended(invalid("n is 0", "n"), field="sampling.n")
    assert [one.field for one in details["BadRequest"].field_violations] == ["sampling.n"]
    _, details = await ended(invalid("it cannot be read"))
    assert not details["BadRequest"].field_violations


async def test_what_may_succeed_later_says_when() -> None:
    for error in (too_much("full", 7), unavailable("no engine")):
        context, details = await ended(error)
        assert context.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details["RetryInfo"].retry_delay.seconds == error.retry_after > 0
    _, details = await ended(TandemError("INTERNAL", "a bug"))
    assert details == {}


async def test_a_missing_process_is_named() -> None:
    _, details = await ended(unavailable("no engine"))
    assert (details["ErrorInfo"].reason, details["ErrorInfo"].domain) == (NO_PROCESS, "tandem")
    _, details = await ended(too_much("full", 7))
    assert "ErrorInfo" not in details


async def test_a_long_message_fits_into_the_metadata() -> None:
    """gRPC's clients refuse more than 8 KiB; each byte of a message may take three there, and details repeat it."""
    context, _ = await ended(invalid("é" * 2000, "x" * 2000))
    assert len(context.details.encode()) <= MAX_MESSAGE_BYTES
    assert set(context.details) == {"é", "…"} or set(context.details) == {"é"}
    assert 3 * MAX_MESSAGE_BYTES + len(context.metadata[DETAILS_KEY]) * 4 / 3 < 8192


async def test_an_answer_is_returned_or_its_error_ends_the_call() -> None:
    async def answer(error: TandemError | None) -> int:
        if error is not None:
            raise error
        return 3

    context: Any = Context()
    assert await answered(context, answer(None)) == 3
    with pytest.raises(grpc.aio.AbortError):
        await answered(context, answer(invalid("no", "n")))
    assert context.code == grpc.StatusCode.INVALID_ARGUMENT
