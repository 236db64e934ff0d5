"""Calls to the gateway's port, which asks for no secret, with odd values and malformed bytes."""

import asyncio
import contextlib
import random

import grpc
from google.protobuf.message import Message
from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated import common_pb2 as smg

from tests.security.malformed import mutated, set_odd_values

SERVICE = "/vllm.grpc.engine.VllmEngine"
CALLS_PER_CHANNEL = 100
AT_ONCE = 32
CALL_SECONDS = 5.0
SAMPLING = vllm.SamplingParams(max_tokens=1, temperature=0.0)
CALLS: list[tuple[str, str, Message]] = [  # kind, method and request
    ("unary_stream", "Generate", vllm.GenerateRequest(request_id="hostile", text="a", sampling_params=SAMPLING)),
    (
        "unary_stream",
        "Generate",
        vllm.GenerateRequest(tokenized=vllm.TokenizedInput(input_ids=[5, 6]), sampling_params=SAMPLING, stream=True),
    ),
    ("unary_unary", "Abort", vllm.AbortRequest(request_ids=["hostile"])),
    ("unary_unary", "GetLoads", vllm.GetLoadsRequest(include=["core"])),
    ("unary_unary", "GetModelInfo", vllm.GetModelInfoRequest()),
    ("unary_unary", "Embed", vllm.EmbedRequest()),
    ("unary_stream", "GetTokenizer", smg.GetTokenizerRequest()),
]


async def gateway_calls(address: str, num_frames: int, seed: int) -> None:
    """Makes `num_frames` calls, some at once, and reads what comes at once."""
    rng = random.Random(seed)
    for first in range(0, num_frames, CALLS_PER_CHANNEL):
        async with grpc.aio.insecure_channel(address) as channel:
            left = min(CALLS_PER_CHANNEL, num_frames - first)
            while left > 0:
                await asyncio.gather(*(_call(channel, rng) for _ in range(min(AT_ONCE, left))))
                left -= AT_ONCE


async def _call(channel: grpc.aio.Channel, rng: random.Random) -> None:
    kind, method, request = rng.choice(CALLS)
    changed = type(request)()
    changed.CopyFrom(request)
    set_odd_values(changed, rng)
    content = changed.SerializeToString() if rng.random() < 0.9 else mutated(request.SerializeToString(), rng)
    with contextlib.suppress(grpc.aio.AioRpcError):
        call = getattr(channel, kind)(f"{SERVICE}/{method}")(content, timeout=CALL_SECONDS)
        if kind == "unary_unary":
            await call
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rng.choice([0.01, 0.1])):
                await call.read()
        call.cancel()
