"""HTTP responses: JSON, errors in OpenAI's format, and the SSE stream, which is closed when the client disconnects."""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.rpc.errors import TandemError
from services.shim.apis.answer import Answer, Json
from services.shim.apis.json_pieces import PIECE_BYTES
from services.shim.generation import Generation

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
SEND_BODY = "tandem.send_body"  # scope key of the server's own `send`: middleware is bypassed, as none reads a body
JSON = "application/json"
DONE = b"data: [DONE]\n\n"


class ClientGone(Exception):
    """The client disconnected before it had the complete response."""


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(content), status, headers, media_type=JSON)


def error_body(error: TandemError) -> Json:
    """Returns the error as OpenAI's JSON object {"error": …}: https://platform.openai.com/docs/guides/error-codes"""
    return {
        "error": {
            "message": error.message,
            "type": error.status.openai_type,
            "param": error.param or None,
            "code": error.reason or None,
        }
    }


def error_response(error: TandemError) -> Response:
    headers = {"retry-after": str(error.retry_after)} if error.retry_after else {}
    if error.status.http == 401:
        headers["www-authenticate"] = "Bearer"  # RFC 9110, section 11.6.1
    return json_response(error_body(error), error.status.http, headers)


async def until_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`, or raises its error; cancels it and raises ClientGone after a disconnect."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def whole_response(pieces: Iterator[bytes], headers: Mapping[str, str] | None = None) -> Response:
    """Returns the response with this JSON: up to about PIECE_BYTES with its length, more in parts, with pauses."""
    first, is_all = _joined(pieces)
    if is_all:
        return Response(first, 200, headers, JSON)
    return PiecesResponse(first, pieces, headers)


class PiecesResponse(Response):
    """Sends JSON without its length: `first`, then the other pieces, several at a time."""

    media_type = JSON

    def __init__(self, first: bytes, others: Iterator[bytes], headers: Mapping[str, str] | None) -> None:
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._first = first
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with contextlib.suppress(ClientGone):
            await until_disconnected(receive, self._send_all(self._first, scope[SEND_BODY]))

    async def _send_all(self, part: bytes, send: Send) -> None:
        is_last = False
        while not is_last:
            await write(send, part)
            await asyncio.sleep(0)
            part, is_last = _joined(self._others)
        await write(send, part, more=False)


def _joined(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """Returns the next pieces, up to about PIECE_BYTES, as one, and whether they are the last."""
    taken, size = [], 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            return b"".join(taken), False
    return b"".join(taken), True


async def write(send: Send, body: bytes, *, more: bool = True) -> None:
    """Sends a part of a body. Raises ClientGone if the connection is closed."""
    try:
        await send({"type": "http.response.body", "body": body, "more_body": more})
    except (OSError, RuntimeError) as error:  # the transport is closed
        raise ClientGone from error


class SseResponse(Response):
    """Streams `answer` as server-sent events: one JSON chunk each, then [DONE].

    A TandemError becomes the last event, without [DONE] behind it: an answer that was cut must not look whole.
    Closes `generation` when the stream ends or the client disconnects. With `include_usage`, one more chunk, the last
    before [DONE], has the token counts. A chunk without counts then has usage null.
    https://html.spec.whatwg.org/multipage/server-sent-events.html
    """

    media_type = "text/event-stream"

    def __init__(
        self, answer: Answer, generation: Generation, *, include_usage: bool, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._answer = answer
        self._generation = generation
        self._include_usage = include_usage
        # Equal in all chunks, so encoded once.
        self._before = b"data: " + _encode(answer.head())[:-1] + b","
        self._after = b',"usage":null}\n\n' if include_usage and not answer.counts_in_chunks else b"}\n\n"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnected(receive, self._stream(send, scope[SEND_BODY]))
        except ClientGone:
            pass
        finally:
            self._generation.close()

    async def _stream(self, send: Send, send_body: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await self._send(send_body, self._answer.first_chunks(), self._after)
            while (chunks := await self._answer.next_chunks()) is not None:
                await self._send(send_body, chunks, self._after)
            if self._include_usage:
                await self._send(send_body, [{"choices": [], "usage": self._answer.usage()}], b"}\n\n")
            last = DONE
        except TandemError as error:
            # The status 200 is sent already.
            last = b"data: " + _encode(error_body(error)) + b"\n\n"
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send(self, send: Send, chunks: list[Json], after: bytes) -> None:
        if chunks:
            body = b"".join([self._before + _encode(chunk)[1:-1] + after for chunk in chunks])
            if len(body) <= PIECE_BYTES:
                await write(send, body)
            else:
                await self._send_large(send, body)

    async def _send_large(self, send: Send, body: bytes) -> None:
        """Sends chunks of a slow reader in parts. What has not been sent counts as held."""
        self._generation.hold(len(body))
        for start in range(0, len(body), PIECE_BYTES):
            part = body[start : start + PIECE_BYTES]
            await write(send, part)
            self._generation.hold(-len(part))
            await asyncio.sleep(0)
