"""The raw client: every way in which a server can end a request is an outcome. Over a real socket."""

import asyncio
from dataclasses import replace

import pytest

from tests.chaos.attempt import ANSWERED, HUNG_UP, LOST, REFUSED, Attempt
from tests.chaos.cases import Case

EVENT = b'data: {"choices":[{"index":0,"text":"a","token_ids":[5]}]}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = Case("", "/", {"stream": True})


def chunked(*pieces: bytes) -> bytes:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed


async def attempt_at(answer: bytes, case: Case = STREAM, hangs: bool = False) -> Attempt:
    """Returns the request's outcome at a server that sends `answer`, then closes the connection, or `hangs`."""
    may_close = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if hangs:
            await may_close.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        found = await Attempt(case).run("127.0.0.1", port, 0.3 if hangs else 20)
        may_close.set()
    return found


@pytest.mark.parametrize(
    ("answer", "outcome", "reason"),
    [
        (chunked(EVENT, EVENT + DONE, b""), ANSWERED, ""),
        (chunked(EVENT[:9], EVENT[9:], DONE, b""), ANSWERED, ""),
        (chunked(EVENT, b""), LOST, "without [DONE]"),
        (chunked(EVENT, b'data: {"error":{"code":7}}\n\n', b""), LOST, "error in the stream: {'code': 7}"),
        (chunked(EVENT), LOST, "IncompleteReadError"),
        (b"HTTP/1.1 503 Busy\r\n\r\nlater", REFUSED, "status 503: later"),
        (b"", REFUSED, "IncompleteReadError"),
    ],
)
async def test_streams(answer: bytes, outcome: str, reason: str) -> None:
    found = await attempt_at(answer)
    assert (found.outcome, found.ended_at > found.started) == (outcome, True) and reason in found.reason
    assert found.num_tokens == len(found.times)


async def test_a_whole_answer() -> None:
    found = await attempt_at(b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"one":1}', Case("", "/", {}))
    assert (found.outcome, found.whole) == (ANSWERED, {"one": 1})


async def test_an_answer_without_an_end_is_lost() -> None:
    found = await attempt_at(chunked(EVENT), hangs=True)
    assert (found.outcome, found.reason) == (LOST, "no end within 0.3 s")


async def test_the_client_hangs_up_when_it_has_enough() -> None:
    assert (await attempt_at(chunked(EVENT, EVENT), replace(STREAM, hang_up_tokens=2))).outcome == HUNG_UP


async def test_no_server() -> None:
    found = await Attempt(Case("", "/", {})).run("127.0.0.1", 1, 20)
    assert found.outcome == REFUSED and "ConnectionRefusedError" in found.reason
