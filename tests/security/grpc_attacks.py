"""Attacks on the gRPC edges by a peer that has the secret: malformed calls, idle start locks, many suspects (requests
that ran when processes died).

Each attack takes a number of frames, and ends by itself.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence

import grpc
from google.protobuf.message import Message

from services.rpc.columns import pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.hello import make_hello
from services.rpc.transport import open_channel
from tests.security.malformed import mutated, set_odd_values
from tests.security.peers import OURS

MESSAGES_PER_STREAM = 50  # unless the callee closes the stream earlier
CALLS_PER_CHANNEL = 100
# Of an attack, for each start lock or long prompt: they take longer.
FRAMES_PER_SLOW_ONE = 1000
CALL_SECONDS = 5.0
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
            request_id="hostile", attempt=2, chat=text_pb2.ChatInput(messages_json=b'[{"role": "user"}]'),
            choices=[pb.Choice(handle=1)], sampling=SAMPLING, alone=True,
        )
    ),
    text_pb2.TextEntry(abort=pb.Abort(handle=1)),
]  # fmt: skip

CHAT = text_pb2.ChatInput(messages_json=b'[{"role": "user", "content": "a"}]', add_generation_prompt=True)
PROGRAM_CALLS: dict[str, list[tuple[str, str, Message]]] = {  # kind, method and request of programs' calls
    "TextService": [
        ("unary_stream", "Generate", text_pb2.GenerateTextRequest(chat=CHAT, sampling=SAMPLING, stream=True)),
        (
            "unary_stream",
            "Generate",
            text_pb2.GenerateTextRequest(
                token_ids=text_pb2.TokenIds(ids=[5, 6]),
                sampling=SAMPLING,
                resume=text_pb2.TextResume(started=text_pb2.TextStarted(seed=1), choices=[pb.ResumedChoice(index=0)]),
            ),
        ),
        ("unary_unary", "Tokenize", text_pb2.TokenizeRequest(text=text_pb2.TextInput(text="a"), return_tokens=True)),
        ("unary_unary", "Detokenize", text_pb2.DetokenizeRequest(token_ids=[5, 6])),
        ("unary_unary", "Render", text_pb2.RenderRequest(chat=CHAT)),
        ("unary_unary", "GetModelInfo", pb.GetModelInfoRequest()),
        ("unary_unary", "GetStats", engine_pb2.GetStatsRequest()),
        ("unary_stream", "GetTokenizer", text_pb2.GetTokenizerRequest()),
        ("unary_unary", "GetTokenizerConfig", text_pb2.GetTokenizerConfigRequest()),
        ("unary_stream", "Encode", text_pb2.EncodeRequest(submit=text_pb2.TextSubmit(chat=CHAT), any_length=True)),
        ("unary_stream", "Decode", text_pb2.DecodeRequest(token_ids=pack_u32([1, 2, 3]))),
    ],
    "EngineService": [
        (
            "unary_stream",
            "Generate",
            engine_pb2.GenerateTokensRequest(prompt_token_ids=[5, 6], sampling=SAMPLING, cache_salt="hostile"),
        ),
        (
            "unary_stream",
            "Generate",
            engine_pb2.GenerateTokensRequest(
                prompt_token_ids=[5, 6],
                sampling=SAMPLING,
                stream=True,
                resume=engine_pb2.TokensResume(choices=[pb.ResumedChoice(index=0, token_ids=[7])]),
            ),
        ),
        ("unary_unary", "GetModelInfo", pb.GetModelInfoRequest()),
    ],
}


async def calls_with_secret(
    address: str, service: str, hello: bytes, messages: Sequence[Message], num_frames: int, seed: int
) -> None:
    """Opens streams that send odd values and malformed bytes, and makes other calls with malformed bytes, until
    `num_frames` messages are sent."""
    rng = random.Random(seed)
    left = num_frames
    while left > 0:
        async with open_channel(address, OURS) as channel:  # a new one: answers that are not read keep calls open
            for _ in range(CALLS_PER_CHANNEL):
                if rng.random() < 0.2:
                    left -= 1
                    await _other_call(channel, service, mutated(hello, rng), rng)
                else:
                    left -= await _stream(channel, service, hello, messages, rng)


async def _stream(
    channel: grpc.aio.Channel, service: str, hello: bytes, messages: Sequence[Message], rng: random.Random
) -> int:
    """Sends a hello and up to MESSAGES_PER_STREAM malformed messages on one stream. Returns the number sent."""
    stream = channel.stream_stream(f"/tandem.v1.{service}/Connect")()
    sent = 0
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
        async with asyncio.timeout(CALL_SECONDS):
            sent += 1
            await stream.write(hello if rng.random() < 0.8 else mutated(hello, rng))
            for _ in range(MESSAGES_PER_STREAM):
                sent += 1
                await stream.write(_malformed(rng.choice(messages), rng))
            await stream.done_writing()
    stream.cancel()
    return sent


def _malformed(message: Message, rng: random.Random) -> bytes:
    """Returns the message with odd values; one in ten has mutated bytes instead, which end the stream."""
    if rng.random() < 0.1:
        return mutated(message.SerializeToString(), rng)
    changed = type(message)()
    changed.CopyFrom(message)
    for entry in changed.entries:  # type: ignore[attr-defined]
        set_odd_values(entry.submit if rng.random() < 0.8 else entry, rng)
    return changed.SerializeToString()


async def _other_call(channel: grpc.aio.Channel, service: str, content: bytes, rng: random.Random) -> None:
    """Makes one call with malformed bytes, or a program's call with odd values, and reads what comes at once."""
    kind, method = rng.choice([("unary_unary", "GetStats"), ("unary_unary", "None"), ("unary_stream", "HoldStartLock")])
    if rng.random() < 0.5:
        kind, method, request = rng.choice(PROGRAM_CALLS[service])
        changed = type(request)()
        changed.CopyFrom(request)
        set_odd_values(changed, rng)
        content = changed.SerializeToString() if rng.random() < 0.9 else mutated(request.SerializeToString(), rng)
    with contextlib.suppress(grpc.aio.AioRpcError):
        call = getattr(channel, kind)(f"/tandem.v1.{service}/{method}")(content, timeout=CALL_SECONDS)
        if kind == "unary_unary":
            await call
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rng.choice([0.0, 0.01])):
                    await call.read()
            call.cancel()


async def idle_start_locks(address: str, service: str, role: str, num_frames: int) -> None:
    """Takes the start lock again and again without starting a request, until each grant ends."""
    async with open_channel(address, OURS) as channel:
        for _ in range(max(1, num_frames // FRAMES_PER_SLOW_ONE)):
            hello = make_hello(role).SerializeToString()
            call = channel.unary_stream(f"/tandem.v1.{service}/HoldStartLock")(hello, timeout=CALL_SECONDS)
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await call.read() is not grpc.aio.EOF:
                    pass


async def suspects_with_long_prompts(address: str, num_frames: int) -> None:
    """Submits long prompts as suspects, without the start lock, and as resumed calls, which no queue limit refuses.

    They run like any others: a client that comes behind them waits for all of their tokens.
    """
    entries = [
        engine_pb2.EngineEntry(
            submit=engine_pb2.Submit(
                attempt=2, prompt_token_ids=pack_u32([5] * 250), choices=[pb.Choice(handle=handle)], sampling=SAMPLING,
                cache_salt=str(handle), alone=True,
            )
        )
        for handle in range(1, max(2, num_frames // FRAMES_PER_SLOW_ONE))
    ]  # fmt: skip
    async with open_channel(address, OURS) as channel, asyncio.timeout(CALL_SECONDS * 10):
        stream = channel.stream_stream("/tandem.v1.EngineService/Connect")()
        await stream.write(engine_pb2.EngineDown(hello=make_hello("tokenizer")).SerializeToString())
        await stream.write(engine_pb2.EngineDown(entries=entries).SerializeToString())
        ended = 0
        while ended < len(entries):
            ended += len(engine_pb2.EngineUp.FromString(await stream.read()).step.terminals)
        stream.cancel()
