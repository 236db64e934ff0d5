"""Malformed frames and calls on each edge of a deployment: from a peer that has the secret, and from one that has not.

Each attack takes a number of frames and a seed, and ends by itself. What is sent follows from the seed alone.
"""

import asyncio
import contextlib
import math
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import zmq
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from engine_core.step_plan import StepResult, pack_i32
from engine_core.worker_messages import PROTOCOL, Register, StepDone, WorkerHello, encode
from services.rpc.columns import pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.hello import make_hello
from services.rpc.transport import open_channel
from services.security import curve
from services.telemetry.metrics_server import MAX_CONNECTIONS
from services.zeromq.socket_options import MAX_RESULT_BYTES
from tests.fakes import make_facts
from tests.security.deployment import Deployment
from tests.security.peers import OURS, zmq_socket

PER_STREAM = 50  # messages of one stream, if it lives so long
PER_CONNECTION = 25
CALLS_PER_CHANNEL = 100
# What costs an attacker more comes less often: one for so many frames.
CALLS_FOR_A_START_LOCK, CALLS_FOR_A_PROMPT, CALLS_FOR_A_LARGE_FRAME, CALLS_FOR_A_WORKER = 1000, 500, 10_000, 500
CALL_SECONDS = 5.0
GREETING = bytes.fromhex("ff00000000000000017f0300") + b"CURVE" + bytes(47)  # ZMTP 3.0 (RFC 23)
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(190)  # RFC 8446, cut in many places
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
TRAPS = [b"\xdd\xff\xff\xff\xff", b"\x91" * 600, b"\xff" * 10, b"\x7f" * 40]  # lists that claim much, or lie deep
MODEL_FRAMES = [
    encode(WorkerHello(PROTOCOL, 1, 0)),
    encode(Register(1, make_facts())),
    encode(StepDone(StepResult(1, 1, *(pack_i32([1, 2]) for _ in range(6)), b"\0" * 8))),
]
SAMPLING = pb.SamplingParams(max_tokens=1, temperature=0.0)
ENGINE_ENTRIES = [
    engine_pb2.EngineEntry(
        submit=engine_pb2.Submit(
            request_id="hostile", attempt=2, prompt_token_ids=pack_u32([5, 6]), choices=[pb.Choice(handle=1)],
            sampling=SAMPLING, cache_salt="hostile", alone=True,
        )
    ),
    engine_pb2.EngineEntry(abort=pb.Abort(handle=1)),
]  # fmt: skip
TEXT_ENTRIES = [
    text_pb2.TextEntry(
        submit=text_pb2.TextSubmit(
            request_id="hostile", attempt=2, chat=text_pb2.ChatInput(messages_json='[{"role": "user"}]'),
            choices=[pb.Choice(handle=1)], sampling=SAMPLING, alone=True,
        )
    ),
    text_pb2.TextEntry(abort=pb.Abort(handle=1)),
]  # fmt: skip


def spoiled(good: bytes, source: random.Random) -> bytes:
    """A message with something wrong: bytes changed, cut off, repeated, put in; or no message at all."""
    content = bytearray(good)
    for _ in range(source.randint(1, 4)):
        place = source.randrange(len(content) + 1)
        match source.randrange(6):
            case 0 if content:
                content[place % len(content)] = source.randrange(256)
            case 1:
                del content[place:]
            case 2:
                content[place:place] = source.randbytes(source.randint(1, 8))
            case 3:
                content += content[place : place + 64]
            case 4:
                content[place:place] = source.choice(TRAPS)
            case _:
                content = bytearray(source.randbytes(source.randint(0, 64)))
    return bytes(content)


def odd(message: Message, source: random.Random) -> Message:
    """The message with unexpected values in some of its fields, each of the right type."""
    for field in message.DESCRIPTOR.fields:
        if source.random() < 0.6:
            continue
        if field.is_repeated:
            message.ClearField(field.name)
            for _ in range(source.choice([1, 2] if field.type == field.TYPE_MESSAGE else [1, 2, 200])):
                _set_odd(message, field, source)
        else:
            _set_odd(message, field, source)
    return message


def _set_odd(message: Message, field: FieldDescriptor, source: random.Random) -> None:
    if field.type == field.TYPE_MESSAGE:
        value = getattr(message, field.name)
        odd(value.add() if field.is_repeated else value, source)
        return
    choices: dict[int, list[Any]] = {
        field.TYPE_STRING: ["", "x" * 3000, "[" * 3000, "{{ 1 }}", '[{"role": "user", "content": null}]', "\0"],
        field.TYPE_BYTES: [b"", b"\1", b"\xff" * 4, b"\0" * 400, pack_u32([5, 6]), pack_u32([2**31])],
        field.TYPE_BOOL: [True, False],
        field.TYPE_FLOAT: [0.0, -1.0, math.nan, math.inf, 1e30],
        field.TYPE_ENUM: [0, 1, 4, 77],
        field.TYPE_UINT32: [0, 1, 2, 2**31, 2**32 - 1],
        field.TYPE_UINT64: [0, 1, 2**63, 2**64 - 1],
        field.TYPE_INT32: [0, -1, -(2**31), 2**31 - 1],
        field.TYPE_SINT32: [0, -1, -(2**31), 2**31 - 1],
    }
    value = source.choice(choices[field.type])
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def raw_bytes(address: str, starts: Sequence[bytes], num_frames: int, seed: int) -> None:
    """Malformed bytes without the secret, on connections that the other end may close at any time."""
    source = random.Random(seed)
    host, _, port = address.rpartition(":")
    while num_frames > 0:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host.strip("[]"), int(port)), timeout=5) as peer,
        ):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            for _ in range(min(PER_CONNECTION, num_frames)):
                num_frames -= 1
                peer.sendall(spoiled(source.choice(starts), source))


def frames_with_secret(address: str, num_frames: int, seed: int) -> None:
    """Malformed frames of a second worker."""
    source = random.Random(seed)
    left = num_frames
    while left > 0:
        with zmq_socket(zmq.DEALER) as peer:
            curve.configure_client(peer, OURS)
            peer.setsockopt(zmq.LINGER, 2000)
            peer.connect(f"tcp://{address}")
            for _ in range(min(100 * PER_CONNECTION, left)):
                left -= 1
                frame = spoiled(source.choice(MODEL_FRAMES), source)
                peer.send_multipart([frame] * source.choice([1, 1, 1, 3]))


async def calls_with_secret(
    address: str, service: str, hello: bytes, downs: Sequence[Message], num_frames: int, seed: int
) -> None:
    """Streams that begin well and go on with odd values or malformed bytes, and other calls with malformed bytes."""
    source = random.Random(seed)
    left = num_frames
    while left > 0:
        async with open_channel(address, OURS) as channel:  # a new one: answers that nothing reads keep calls open
            for _ in range(CALLS_PER_CHANNEL):
                if source.random() < 0.2:
                    left -= 1
                    await _ask(channel, service, spoiled(hello, source), source)
                else:
                    left -= await _talk(channel, service, hello, downs, source)


async def _talk(
    channel: grpc.aio.Channel, service: str, hello: bytes, downs: Sequence[Message], source: random.Random
) -> int:
    """Returns the number of messages sent on one stream."""
    stream = channel.stream_stream(f"/tandem.v1.{service}/Connect")()
    sent = 0
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
        async with asyncio.timeout(CALL_SECONDS):
            sent += 1
            await stream.write(hello if source.random() < 0.8 else spoiled(hello, source))
            for _ in range(PER_STREAM):
                sent += 1
                await stream.write(_wrong(source.choice(downs), source))
            await stream.done_writing()
    stream.cancel()
    return sent


def _wrong(down: Message, source: random.Random) -> bytes:
    """Most are well-formed, because malformed bytes end the stream."""
    if source.random() < 0.1:
        return spoiled(down.SerializeToString(), source)
    changed = type(down)()
    changed.CopyFrom(down)
    for entry in changed.entries:  # type: ignore[attr-defined]
        odd(entry.submit if source.random() < 0.8 else entry, source)
    return changed.SerializeToString()


async def _ask(channel: grpc.aio.Channel, service: str, content: bytes, source: random.Random) -> None:
    kind, method = source.choice(
        [("unary_unary", "GetStats"), ("unary_unary", "None"), ("unary_stream", "HoldStartLock")]
    )
    with contextlib.suppress(grpc.aio.AioRpcError):
        call = getattr(channel, kind)(f"/tandem.v1.{service}/{method}")(content, timeout=CALL_SECONDS)
        if kind == "unary_unary":
            await call
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(source.choice([0.0, 0.01])):
                    await call.read()
            call.cancel()


def _engine_hello() -> bytes:
    return engine_pb2.EngineDown(hello=make_hello("tokenizer")).SerializeToString()


def _text_hello() -> bytes:
    return text_pb2.TextDown(hello=make_hello("shim")).SerializeToString()


async def idle_start_locks(address: str, service: str, role: str, num_calls: int) -> None:
    """Takes the start lock again and again, and does nothing with it."""
    async with open_channel(address, OURS) as channel:
        for _ in range(max(1, num_calls // CALLS_FOR_A_START_LOCK)):
            hello = make_hello(role).SerializeToString()
            call = channel.unary_stream(f"/tandem.v1.{service}/HoldStartLock")(hello, timeout=CALL_SECONDS)
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await call.read() is not grpc.aio.EOF:
                    pass


async def all_alone(address: str, num_calls: int) -> None:
    """Long prompts that claim to need the engine alone, as resumed calls that no queue limit refuses."""
    entries = [
        engine_pb2.EngineEntry(
            submit=engine_pb2.Submit(
                attempt=2, prompt_token_ids=pack_u32([5] * 500), choices=[pb.Choice(handle=handle)], sampling=SAMPLING,
                cache_salt=str(handle), alone=True,
            )
        )
        for handle in range(1, max(2, num_calls // CALLS_FOR_A_PROMPT))
    ]  # fmt: skip
    async with open_channel(address, OURS) as channel, asyncio.timeout(CALL_SECONDS * 10):
        stream = channel.stream_stream("/tandem.v1.EngineService/Connect")()
        await stream.write(engine_pb2.EngineDown(hello=make_hello("tokenizer")).SerializeToString())
        await stream.write(engine_pb2.EngineDown(entries=entries).SerializeToString())
        ended = 0
        while ended < len(entries):
            ended += len(engine_pb2.EngineUp.FromString(await stream.read()).step.terminals)
        stream.cancel()


def slow_clients(at: Deployment, num_bytes: int) -> None:
    """Byte by byte on every metrics port, from more clients than there are places. Meanwhile /health answers."""
    with contextlib.ExitStack() as held:
        slow = []
        for address in at.monitors:
            host, _, port = address.rpartition(":")
            peers = [socket.create_connection((host.strip("[]"), int(port)), 5) for _ in range(2 * MAX_CONNECTIONS)]
            slow += [held.enter_context(peer) for peer in peers]
        for index in range(num_bytes):
            with contextlib.suppress(OSError):  # the monitor closed it for a newer one
                slow[index % len(slow)].sendall(b"G")
            if index % 1000 == 0:
                assert at.healthy()


def large_frames(address: str, num_frames: int) -> None:
    """Above the limit: libzmq closes the connection before it reads them."""
    for _ in range(max(1, num_frames // CALLS_FOR_A_LARGE_FRAME)):
        with zmq_socket(zmq.DEALER) as peer:
            curve.configure_client(peer, OURS)
            peer.connect(f"tcp://{address}")
            peer.send(bytes(MAX_RESULT_BYTES + 1), copy=False)
            peer.poll(200)


def other_workers(address: str, num_frames: int) -> None:
    """Registrations of workers with another key, which know the engine's."""
    for _ in range(max(1, num_frames // CALLS_FOR_A_WORKER)):
        with zmq_socket(zmq.DEALER) as peer:
            curve.configure_client(peer, OURS)
            public, key = zmq.curve_keypair()
            peer.setsockopt(zmq.CURVE_PUBLICKEY, public)
            peer.setsockopt(zmq.CURVE_SECRETKEY, key)
            peer.connect(f"tcp://{address}")
            peer.send(MODEL_FRAMES[0])
            assert not peer.poll(20), "it was let in"


def attacks(at: Deployment) -> dict[str, Callable[[int, int], None]]:
    """By name: takes the number of frames and a seed."""
    engine = [engine_pb2.EngineDown(entries=[entry]) for entry in ENGINE_ENTRIES]
    text = [text_pb2.TextDown(entries=[entry]) for entry in TEXT_ENTRIES]

    def calls(address: str, service: str, hello: bytes, downs: Sequence[Message]) -> Callable[[int, int], None]:
        def run(num_frames: int, seed: int) -> None:
            asyncio.run(_within(calls_with_secret(address, service, hello, downs, num_frames, seed)))

        return run

    return {
        "tokenizer's gRPC, without the secret": lambda n, seed: raw_bytes(at.tokenizer, [TLS_HELLO, HTTP2], n, seed),
        "tokenizer's gRPC, with the secret": calls(at.tokenizer, "TextService", _text_hello(), text),
        "engine's gRPC, without the secret": lambda n, seed: raw_bytes(at.engine, [TLS_HELLO, HTTP2], n, seed),
        "engine's gRPC, with the secret": calls(at.engine, "EngineService", _engine_hello(), engine),
        "engine's ZeroMQ, without the secret": lambda n, seed: raw_bytes(at.worker, [GREETING, *MODEL_FRAMES], n, seed),
        "engine's ZeroMQ, with the secret": lambda n, seed: frames_with_secret(at.worker, n, seed),
        "engine's start lock, held idly": lambda n, seed: asyncio.run(
            idle_start_locks(at.engine, "EngineService", "tokenizer", n)
        ),
        "tokenizer's start lock, held idly": lambda n, seed: asyncio.run(
            idle_start_locks(at.tokenizer, "TextService", "shim", n)
        ),
        "engine's gRPC, all alone": lambda n, seed: asyncio.run(all_alone(at.engine, n)),
        "metrics ports, byte by byte": lambda n, seed: slow_clients(at, n),
        "engine's ZeroMQ, large frames": lambda n, seed: large_frames(at.worker, n),
        "engine's ZeroMQ, other workers": lambda n, seed: other_workers(at.worker, n),
    }


async def _within(attack: Awaitable[None], seconds: float = 1200.0) -> None:
    await asyncio.wait_for(attack, seconds)
