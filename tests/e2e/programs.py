"""Programs' calls to a running server: Generate of tokenizer and engine, and what their answers hold."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from services.rpc.finish_reasons import NAME_BY_REASON
from services.rpc.generated import engine_pb2, engine_pb2_grpc, text_pb2, text_pb2_grpc
from services.rpc.pieces import CONTENT
from services.rpc.status import DETAILS_KEY
from services.rpc.transport import open_channel
from tests.e2e.harness import Server

Json = dict[str, Any]
ResultT = TypeVar("ResultT")
SECONDS = 120.0


@asynccontextmanager
async def services(server: Server) -> AsyncIterator[tuple[Any, Any]]:
    """Provides the stubs of TextService and of EngineService."""
    folder = server.runtime_dir
    async with (
        open_channel(f"unix:{folder}/tokenizer-0.sock") as tokenizer,
        open_channel(f"unix:{folder}/engine.sock") as engine,
    ):
        yield text_pb2_grpc.TextServiceStub(tokenizer), engine_pb2_grpc.EngineServiceStub(engine)


def run(server: Server, body: Callable[[Any, Any], Awaitable[ResultT]]) -> ResultT:
    """Returns what `body(text stub, engine stub)` returns."""

    async def inside() -> ResultT:
        async with services(server) as stubs, asyncio.timeout(SECONDS):
            return await body(*stubs)

    return asyncio.run(inside())


def chat(content: str, **kwargs: Any) -> text_pb2.ChatInput:
    return text_pb2.ChatInput(
        messages_json=json.dumps([{"role": "user", "content": content}]).encode(),
        template_kwargs_json=json.dumps(kwargs).encode() if kwargs else b"",
        add_generation_prompt=True,
    )


def generate(server: Server, request: Any) -> list[Any]:
    """Returns the responses to a request of either service. Raises AioRpcError if the call fails."""
    return run(server, lambda text, engine: responses(text, engine, request))


async def responses(text: Any, engine: Any, request: Any) -> list[Any]:
    stub = text if isinstance(request, text_pb2.GenerateTextRequest) else engine
    return [response async for response in stub.Generate(request)]


def fold(found: Iterable[Any]) -> Json:
    """Returns what does not depend on how the answer was cut: started, usage, and each choice as its deltas joined."""
    answer: Json = {"started": None, "choices": {}, "usage": None}
    for response in found:
        if response.HasField("started"):
            assert answer["started"] is None
            answer["started"] = response.started
        for delta in response.choices:
            choice = answer["choices"].setdefault(
                delta.index, {"token_ids": [], "text": "", "logprobs": [], "finish_reason": None, "stop_reason": None}
            )
            assert choice["finish_reason"] is None, "nothing comes after the end of a choice"
            _add(choice, delta)
        if response.HasField("usage"):
            assert answer["usage"] is None
            answer["usage"] = response.usage
    return answer


def _add(choice: Json, delta: Any) -> None:
    choice["token_ids"] += delta.token_ids
    choice["finish_reason"] = NAME_BY_REASON.get(delta.finish_reason)
    if isinstance(delta, engine_pb2.TokensDelta):
        width = delta.logprob_width
        pairs = list(zip(delta.logprob_token_ids, delta.logprobs, strict=True))
        choice["logprobs"] += [pairs[at : at + width] for at in range(0, len(pairs), width or 1)]
        choice["stop_reason"] = delta.stop_token_id if delta.HasField("stop_token_id") else None
        return
    assert all(piece.kind == CONTENT for piece in delta.pieces)
    choice["text"] += "".join(piece.text for piece in delta.pieces)
    choice["logprobs"] += [
        [(one.token_id, one.logprob) for one in (each.sampled, *each.top)] for each in delta.logprobs
    ]
    stop = delta.WhichOneof("stop_reason")
    choice["stop_reason"] = getattr(delta, stop) if stop is not None else None


def answer_of(server: Server, request: Any) -> Json:
    return fold(generate(server, request))


def error_of(server: Server, request: Any) -> grpc.aio.AioRpcError:
    """Returns the error that ends the call."""
    try:
        generate(server, request)
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call succeeded")


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Message]:
    """Returns {name: google.rpc message} of an error's details. Its status must be the call's."""
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())[DETAILS_KEY])  # type: ignore[call-overload,arg-type]
    assert (status.code, status.message) == (error.code().value[0], error.details())
    found: dict[str, Message] = {}
    for packed in status.details:
        name = packed.TypeName().removeprefix("google.rpc.")
        found[name] = getattr(error_details_pb2, name)()
        assert packed.Unpack(found[name])
    return found


def field_of(error: grpc.aio.AioRpcError) -> str:
    """Returns the one field that an INVALID_ARGUMENT names."""
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    request: Any = details_of(error)["BadRequest"]
    assert len(request.field_violations) == 1 and request.field_violations[0].description == error.details()
    return str(request.field_violations[0].field)
