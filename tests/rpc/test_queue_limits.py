"""Queue limits over real streams: a burst is refused, each choice counts, resumed requests are never refused."""

import asyncio
from pathlib import Path

import pytest

from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.generated.engine_pb2_grpc import EngineServiceStub
from services.rpc.hello import make_hello
from services.rpc.transport import open_channel
from tests.rpc.pipeline import Fold, Pipeline, Proxy
from tests.rpc.streams import open_stream

REQS, TOKENS = "max_num_queued_reqs", "max_num_queued_tokens"


def refusals(folds: list[Fold]) -> list[str]:
    return [fold.terminals[0]["error"] for fold in folds if fold.terminals[0]["error"]]


def long_request(num_choices: int) -> engine_pb2.EngineDown:
    """Returns a resumed submit, which the engine accepts beyond its limits."""
    submit = engine_pb2.Submit(
        attempt=9,
        prompt_token_ids=bytes([5, 0, 0, 0]),
        choices=[pb.Choice(handle=handle) for handle in range(1, num_choices + 1)],
        sampling=pb.SamplingParams(max_tokens=200, ignore_eos=True),
    )
    return engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)])


async def until_idle(channel: object) -> None:
    """Waits until the engine has no request."""
    engine = EngineServiceStub(channel)
    async with asyncio.timeout(20):
        while (stats := await engine.GetStats(engine_pb2.GetStatsRequest())).num_running or stats.num_waiting:
            pass


async def test_a_burst_is_refused(socket_dir: Path) -> None:
    """All requests arrive before the scheduler counts the first one, and it has slots for all of them."""
    async with Pipeline(socket_dir, max_num_queued_reqs=4).running() as pipeline:
        for _ in range(3):
            folds = await pipeline.fold(*(pipeline.submit("Hello!", max_tokens=5) for _ in range(7)))
            assert refusals(folds) == [f"4 requests are running or waiting: 1 more would exceed {REQS} (4)"] * 3
            assert [len(fold.token_ids) for fold in folds] == [20] * 4 + [0] * 3
        folds = await pipeline.fold(*(pipeline.submit("Hello!", n=2, max_tokens=5) for _ in range(3)))
        assert len(refusals(folds)) == 2, "both choices of the third"


async def test_tokens_count_until_the_answer_begins(socket_dir: Path) -> None:
    async with Pipeline(socket_dir, max_num_queued_tokens=100).running() as pipeline:
        running = asyncio.create_task(pipeline.fold(pipeline.submit("Hello! " * 5, max_tokens=150)))
        prompts = [pipeline.submit("Hello! " * 10, max_tokens=5) for _ in range(6)]
        found = refusals(await pipeline.fold(*prompts))
        assert 0 < len(found) < 6 and all(f"would exceed {TOKENS} (100)" in message for message in found)
        assert refusals(await pipeline.fold(pipeline.submit("Hello! " * 10, max_tokens=5))) == [], "the queue is empty"
        assert refusals(await running) == []


async def test_a_request_above_the_limit_is_invalid(socket_dir: Path) -> None:
    async with Pipeline(socket_dir, max_num_queued_reqs=2).running() as pipeline:
        assert refusals(await pipeline.fold(pipeline.submit("x", n=3))) == ["n is 3, but must be from 1 to 2"] * 3
        assert pipeline.client.dispatcher.peer is not None
        assert pipeline.client.dispatcher.peer.engine.limits.max_num_queued_reqs == 2


@pytest.mark.parametrize("edge", ["engine_proxy", "text_proxy"])
async def test_a_resumed_request_is_never_refused(socket_dir: Path, edge: str) -> None:
    """Another caller fills the engine before the request resumes."""
    limits = {"max_num_queued_reqs": 4, "max_num_queued_tokens": 40}
    async with Pipeline(socket_dir, **limits).running() as pipeline, open_channel(pipeline.engine_address) as channel:

        def work() -> list[text_pb2.TextSubmit]:
            return [pipeline.submit("Count to ten", max_tokens=6), pipeline.submit("Hello!", n=3, max_tokens=8)]

        await pipeline.fold(*work())
        expected = await pipeline.fold(*work())
        assert refusals(expected) == []
        proxy: Proxy = getattr(pipeline, edge)
        cuts = 0
        for boundary in range(1, 5):
            other = await open_stream(channel, make_hello("tokenizer"))
            cut = asyncio.Event()

            def watch(index: int, message: bytes, boundary: int = boundary, cut: asyncio.Event = cut) -> list[bytes]:
                if index == boundary:
                    cut.set()
                return [message]

            proxy.reset()
            proxy.cut_after, proxy.alter = boundary, watch
            folds = asyncio.create_task(pipeline.fold(*work()))
            was_cut = asyncio.create_task(cut.wait())
            await asyncio.wait({folds, was_cut}, return_when=asyncio.FIRST_COMPLETED)  # messages merge
            was_cut.cancel()
            cuts += cut.is_set()
            await other.write(long_request(4))
            assert await folds == expected, f"cut after message {boundary}"
            other.cancel()
            await until_idle(channel)
        assert cuts > 0, "the hello is always a message"


async def test_an_ended_stream_frees_its_queue_entries(socket_dir: Path) -> None:
    full = Pipeline(socket_dir, max_num_queued_reqs=1)
    async with full.running() as pipeline, open_channel(pipeline.engine_address) as channel, asyncio.timeout(20):
        stream = await open_stream(channel, make_hello("tokenizer"))
        await stream.write(long_request(1))
        while not (await stream.read()).step.accepted:
            pass
        assert len(refusals(await pipeline.fold(pipeline.submit("x", max_tokens=1)))) == 1
        stream.cancel()
        while refusals(await pipeline.fold(pipeline.submit("x", max_tokens=1))):
            pass
