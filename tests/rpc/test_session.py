"""The callee's end of a stream, over a context that the test plays."""

import logging
from collections.abc import Iterable
from typing import Any, NoReturn

import grpc
import pytest

from services.engine.mailbox import StepMailbox
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.hello import make_hello
from services.rpc.session import Callee


class Context:
    """Of a caller that sends these messages."""

    def __init__(self, messages: Iterable[Any]) -> None:
        self._messages = iter(messages)

    async def read(self) -> Any:
        return next(self._messages, grpc.aio.EOF)

    async def write(self, message: object) -> None: ...

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise grpc.aio.AbortError(code, details)


async def test_a_malformed_message_aborts_the_stream_and_leaves_its_traceback_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bug of this process looks like a malformed message: the traceback tells the two apart."""
    broken = ValueError("3 bytes are no column")

    def receive(entry: Any) -> None:
        raise broken

    messages = [
        engine_pb2.EngineDown(hello=make_hello("tokenizer")),
        engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(abort=pb.Abort(handle=1))]),
    ]
    with caplog.at_level(logging.DEBUG, "services.rpc.session"), pytest.raises(grpc.aio.AbortError) as aborted:
        await Callee().converse(
            Context(messages),  # type: ignore[arg-type]
            make_hello("engine"),
            ("tokenizer",),
            StepMailbox(1),
            lambda caller: receive,
            engine_pb2.EngineUp,
        )
    assert aborted.value.args == (grpc.StatusCode.INVALID_ARGUMENT, "malformed message: 3 bytes are no column")
    told = [(record.levelname, record.exc_info and record.exc_info[1]) for record in caplog.records]
    assert told == [("WARNING", None), ("DEBUG", broken)]
