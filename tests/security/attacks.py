"""The list of attacks on a deployment: on each edge between processes, with the secret and without it.

Each attack takes a number of frames and a seed, and ends by itself. What it sends depends only on the seed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from google.protobuf.message import Message

from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.hello import make_hello
from tests.security.deployment import Deployment
from tests.security.gateway_attacks import gateway_calls
from tests.security.grpc_attacks import (
    ENGINE_ENTRIES,
    TEXT_ENTRIES,
    calls_with_secret,
    idle_start_locks,
    suspects_with_long_prompts,
)
from tests.security.http_fuzz import hostile_requests
from tests.security.socket_attacks import (
    HTTP2,
    TLS_HELLO,
    WORKER_FRAMES,
    ZMTP_GREETING,
    frames_with_secret,
    large_frames,
    other_workers,
    raw_bytes,
    slow_clients,
)

TIMEOUT_SECONDS = 1200.0
HTTP_REQUESTS_PER_FRAME = 2
Attack = Callable[[int, int], None]  # takes the number of frames and a seed


def attacks(at: Deployment) -> dict[str, Attack]:
    """Returns the attacks on the deployment `at` by name, in the order in which they run."""
    engine = [engine_pb2.EngineDown(entries=[entry]) for entry in ENGINE_ENTRIES]
    text = [text_pb2.TextDown(entries=[entry]) for entry in TEXT_ENTRIES]
    engine_hello = engine_pb2.EngineDown(hello=make_hello("tokenizer")).SerializeToString()
    text_hello = text_pb2.TextDown(hello=make_hello("shim")).SerializeToString()
    grpc, zmtp = [TLS_HELLO, HTTP2], [ZMTP_GREETING, *WORKER_FRAMES]
    return {
        "tokenizer's gRPC, without the secret": lambda n, seed: raw_bytes(at.tokenizer, grpc, n, seed),
        "tokenizer's gRPC, with the secret": _calls(at.tokenizer, "TextService", text_hello, text),
        "engine's gRPC, without the secret": lambda n, seed: raw_bytes(at.engine, grpc, n, seed),
        "engine's gRPC, with the secret": _calls(at.engine, "EngineService", engine_hello, engine),
        "engine's ZeroMQ, without the secret": lambda n, seed: raw_bytes(at.worker, zmtp, n, seed),
        "engine's ZeroMQ, with the secret": lambda n, seed: frames_with_secret(at.worker, n, seed),
        "engine's start lock, held idly": lambda n, seed: asyncio.run(
            idle_start_locks(at.engine, "EngineService", "tokenizer", n)
        ),
        "shim's HTTP port": lambda n, seed: asyncio.run(
            _with_timeout(hostile_requests(at.front, HTTP_REQUESTS_PER_FRAME * n, seed))
        ),
        "shim's gateway port": lambda n, seed: asyncio.run(_with_timeout(gateway_calls(at.gateway, n, seed))),
        "tokenizer's start lock, held idly": lambda n, seed: asyncio.run(
            idle_start_locks(at.tokenizer, "TextService", "shim", n)
        ),
        "engine's gRPC, suspects with long prompts": lambda n, seed: asyncio.run(
            suspects_with_long_prompts(at.engine, n)
        ),
        "metrics ports, byte by byte": lambda n, seed: slow_clients(at, n),
        "engine's ZeroMQ, large frames": lambda n, seed: large_frames(at.worker, n),
        "engine's ZeroMQ, other workers": lambda n, seed: other_workers(at.worker, n),
    }


def _calls(address: str, service: str, hello: bytes, messages: Sequence[Message]) -> Attack:
    def run(num_frames: int, seed: int) -> None:
        asyncio.run(_with_timeout(calls_with_secret(address, service, hello, messages, num_frames, seed)))

    return run


async def _with_timeout(attack: Awaitable[object]) -> None:
    await asyncio.wait_for(attack, TIMEOUT_SECONDS)
