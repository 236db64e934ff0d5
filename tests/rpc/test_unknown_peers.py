"""Other peers on the worker's socket are dropped or refused. Engine and worker go on, and no answer changes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import zmq

from engine_core.worker_messages import PROTOCOL, Refused, WorkerHello, decode_from_engine, encode
from tests.rpc.pipeline import Pipeline


@pytest.fixture
async def pipeline(socket_dir: Path) -> AsyncIterator[Pipeline]:
    async with Pipeline(socket_dir).running() as running:
        yield running


def connect_and_leave(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)


def send_raw_garbage(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)


def dealer(path: str, frames: list[bytes]) -> bytes | None:
    """Sends frames as a ZeroMQ peer does. Returns the answer, or None after two seconds."""
    peer = zmq.Context.instance().socket(zmq.DEALER)
    try:
        peer.setsockopt(zmq.LINGER, 200)
        peer.connect(f"ipc://{path}")
        peer.send_multipart(frames)
        return peer.recv() if peer.poll(2000) else None
    finally:
        peer.close()


def send_garbage_frames(path: str) -> None:
    assert dealer(path, [b"\xc1garbage"]) is None


def send_many_frames(path: str) -> None:
    assert dealer(path, [b"a", b"", b"b"]) is None


def say_hello(path: str) -> None:
    answer = dealer(path, [encode(WorkerHello(PROTOCOL, 1, 1))])
    assert answer is not None and decode_from_engine([answer]) == Refused(
        "this engine already has a worker", for_now=True
    )


def say_hello_in_another_protocol(path: str) -> None:
    answer = dealer(path, [encode(WorkerHello(99, 1, 1))])
    assert answer is not None
    assert decode_from_engine([answer]) == Refused(f"the engine has protocol {PROTOCOL}, the worker 99")


@pytest.mark.parametrize(
    "connect",
    [
        connect_and_leave,
        send_raw_garbage,
        send_garbage_frames,
        send_many_frames,
        say_hello,
        say_hello_in_another_protocol,
    ],
)
async def test_an_unknown_peer_changes_no_answer(
    pipeline: Pipeline, socket_dir: Path, connect: Callable[[str], None]
) -> None:
    expected = await pipeline.fold(pipeline.submit("Hello!", max_tokens=50))
    running = asyncio.create_task(pipeline.fold(pipeline.submit("Hello!", max_tokens=50)))
    await asyncio.to_thread(connect, str(socket_dir / "worker.sock"))
    assert (await running)[0].token_ids == expected[0].token_ids
    again = await pipeline.fold(pipeline.submit("Hello!", max_tokens=50))
    assert again[0].token_ids == expected[0].token_ids
