"""The real tokenizer and engine services in one event loop, with a hash-chain worker and a proxy on each gRPC edge.

The proxy forwards messages as bytes. A test makes it end the stream at a message boundary, or change, repeat or drop
messages, and checks the answer that the shim's client receives.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from engine_core.worker_messages import ModelFacts
from services.engine import service as engine_service
from services.options.declarations import EngineOptions, ShimOptions
from services.options.tokenizer import TokenizerOptions
from services.process.progress_page import Progress
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.hello import make_hello
from services.rpc.pieces import Piece, add_pieces
from services.rpc.transport import SERVER_OPTIONS, open_channel
from services.shim.access.rules import access_rules
from services.shim.app import make_app
from services.shim.generation import Generation
from services.shim.generations import Generations
from services.shim.in_progress import InProgress
from services.shim.metrics import ShimMetrics
from services.shim.preparer import Preparer
from services.shim.scrape import Scrape
from services.shim.telemetry import RequestTelemetry
from services.shim.tokenizer_client import TokenizerClient
from services.telemetry.spans import NO_SPAN
from services.telemetry.tracing import set_up_tracing
from services.tokenizer import service as tokenizer_service
from services.worker.engine_link import EngineGone, EngineLink
from tests.checkpoints import DEMO_VOCAB_SIZE as VOCAB_SIZE
from tests.fakes import FakeWorker, make_facts

STEP_SECONDS = 0.004  # duration of a fake step, so that not all messages merge into one
DEADLINE = 30.0


def silent_telemetry() -> RequestTelemetry:
    """Returns telemetry that no test reads."""
    return RequestTelemetry("test", ShimMetrics(CollectorRegistry()).of("demo"), NO_SPAN)


class Proxy:
    """Forwards messages between both ends of one edge. The callee's messages count from 1, the hello included and
    heartbeats not. `up` and `batch`: their type, and the name of the field with their content."""

    def __init__(self, method: str, listen: str, target: str, up: type[Message], batch: str) -> None:
        self._method = method
        self._up, self._batch = up, batch
        self._target = target
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self._forward)
        start_lock = grpc.unary_stream_rpc_method_handler(self._forward_start_lock)
        service, name = method.strip("/").split("/")
        self._start_lock_method = f"/{service}/HoldStartLock"
        stats = grpc.unary_unary_rpc_method_handler(self._forward_stats)
        self._stats_method = f"/{service}/GetStats"
        handlers = {name: handler, "HoldStartLock": start_lock, "GetStats": stats}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._server.add_insecure_port(listen)
        self.reset()

    def reset(self) -> None:
        self.num_up = 0
        self.num_streams = 0
        self.num_start_locks = 0
        self.cut_after: int | None = None  # ends one stream after this many messages; 0: drops the next one as well
        self.cut_at_heartbeat = False  # ends one stream at its next heartbeat, which comes within a second or so
        self.cut_each: int | None = None  # ends every stream after this many of its own messages
        self.alter: Callable[[int, bytes], list[bytes]] = lambda index, message: [message]

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def _forward(self, requests: AsyncIterator[bytes], context: Any) -> None:
        self.num_streams += 1
        num_own = 0
        async with open_channel(self._target) as channel:
            call = channel.stream_stream(self._method)()
            down = asyncio.create_task(self._forward_requests(requests, call))
            try:
                while (message := await call.read()) is not grpc.aio.EOF:
                    if self._is_heartbeat(message):
                        if self.cut_at_heartbeat:
                            self.cut_at_heartbeat = False
                            await context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the test")
                        await context.write(message)
                        continue
                    if self.cut_after == 0:
                        self.cut_after = None
                        await context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the test")
                    self.num_up += 1
                    num_own += 1
                    for altered in self.alter(self.num_up, message):
                        await context.write(altered)
                    if self.num_up == self.cut_after or num_own == self.cut_each:
                        await context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the test")
                await context.abort(await call.code(), await call.details())
            finally:
                down.cancel()
                await asyncio.gather(down, return_exceptions=True)
                call.cancel()

    def _is_heartbeat(self, message: bytes) -> bool:
        found: Any = self._up.FromString(message)
        batch = getattr(found, self._batch)
        content = batch.accepted or batch.handles or batch.terminals or batch.prompt_logprobs
        return not found.HasField("hello") and not content

    async def _forward_start_lock(self, request: bytes, context: Any) -> None:
        self.num_start_locks += 1
        async with open_channel(self._target) as channel:
            call = channel.unary_stream(self._start_lock_method)(request)
            try:
                while (message := await call.read()) is not grpc.aio.EOF:
                    await context.write(message)
            except asyncio.CancelledError:
                pass
            finally:
                call.cancel()

    async def _forward_stats(self, request: bytes, context: Any) -> Any:
        async with open_channel(self._target) as channel:
            return await channel.unary_unary(self._stats_method)(request)

    @staticmethod
    async def _forward_requests(requests: AsyncIterator[bytes], call: Any) -> None:
        async for message in requests:
            await call.write(message)


@dataclass
class Fold:
    """The complete answer of one choice: all its updates joined."""

    pieces: list[Piece] = field(default_factory=list)
    token_ids: bytes = b""
    logprobs: list[bytes] = field(default_factory=list)
    terminals: list[dict[str, Any]] = field(default_factory=list)


class Pipeline:
    def __init__(self, folder: Path, **engine: Any) -> None:
        """`engine` are options of the engine."""
        self._engine = {"max_num_seqs": 8, **engine}
        at = f"unix:{folder}"
        self.engine_address, self.tokenizer_address = f"{at}/engine.sock", f"{at}/tokenizer.sock"
        self.engine_proxy = Proxy(
            "/tandem.v1.EngineService/Connect",
            f"{at}/engine-proxy.sock",
            self.engine_address,
            engine_pb2.EngineUp,
            "step",
        )
        self.text_proxy = Proxy(
            "/tandem.v1.TextService/Connect",
            f"{at}/text-proxy.sock",
            self.tokenizer_address,
            text_pb2.TextUp,
            "batch",
        )
        self._worker_endpoint = f"ipc://{folder}/worker.sock"
        self._at = at
        self.facts = make_facts(
            num_blocks=512, block_size=4, max_model_len=256, vocab_size=VOCAB_SIZE, eos_token_ids=(2,)
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Pipeline"]:
        worker = threading.Thread(target=_run_worker, args=(self._worker_endpoint, self.facts), daemon=True)
        engine = EngineOptions(listen=self.engine_address, worker=self._worker_endpoint, **self._engine)
        tokenizer = TokenizerOptions(
            model="demo", listen=self.tokenizer_address, engine=(f"{self._at}/engine-proxy.sock",)
        )
        worker.start()
        await self.engine_proxy.start()
        await self.text_proxy.start()
        self.client = TokenizerClient((f"{self._at}/text-proxy.sock",), make_hello("shim"))
        tasks = [
            asyncio.create_task(engine_service.serve(engine, Progress())),
            asyncio.create_task(tokenizer_service.serve(tokenizer, Progress())),
            asyncio.create_task(self.client.links[0].run()),
        ]
        try:
            await asyncio.wait_for(asyncio.shield(self.client.dispatcher.first_link), DEADLINE)
            yield self
        finally:
            for task in reversed(tasks):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await self.text_proxy.stop()
            await self.engine_proxy.stop()
            worker.join(DEADLINE)
            assert not worker.is_alive()

    @contextlib.asynccontextmanager
    async def http(self, *, raise_app_exceptions: bool = True, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        """Yields an HTTP client of a shim on this pipeline, without a socket. `options` are the shim's."""
        registry = CollectorRegistry()
        shim = ShimOptions(**options)
        metrics = ShimMetrics(registry)
        generations = Generations(self.client, metrics, set_up_tracing("shim", None))
        in_progress = InProgress(shim.max_concurrent_requests, metrics)
        preparer = Preparer(shim)
        app = make_app(generations, preparer, in_progress, access_rules(shim, ""), metrics, Scrape(registry, ()))
        transport = httpx.ASGITransport(app, raise_app_exceptions=raise_app_exceptions)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=DEADLINE) as http:
            yield http
        await preparer.close()

    async def fold(self, *submits: text_pb2.TextSubmit) -> list[Fold]:
        """Submits all requests and returns each choice's answer, in the order of submits and choices."""
        generation = Generation(self.client, list(submits), silent_telemetry(), set())
        await generation.start_others()
        folds = [Fold() for _ in range(generation.num_choices)]
        async with asyncio.timeout(DEADLINE):
            while any(not fold.terminals for fold in folds):
                for update in await generation.take():
                    fold = folds[update.index]
                    assert not fold.terminals, "an update followed the terminal message"
                    add_pieces(fold.pieces, update.pieces)
                    fold.token_ids += bytes(update.token_ids)
                    fold.logprobs += [one.SerializeToString(deterministic=True) for one in update.logprobs]
                    if update.terminal is not None:
                        fold.terminals.append(_plain(update.terminal))
        return folds

    def submit(
        self,
        text: str,
        n: int = 1,
        stop: Sequence[str] = (),
        bad_words: Sequence[str] = (),
        truncation: text_pb2.Truncation | None = None,
        **sampling: Any,
    ) -> text_pb2.TextSubmit:
        new_handle = self.client.dispatcher.new_handle
        return text_pb2.TextSubmit(
            request_id=text,
            text=text_pb2.TextInput(text=text),
            choices=[pb.Choice(handle=new_handle(), choice=choice) for choice in range(n)],
            sampling=pb.SamplingParams(temperature=0.0, ignore_eos=True, **sampling),
            seed=7,
            output=text_pb2.OutputSpec(
                stop=stop, bad_words=bad_words, skip_special_tokens=True, spaces_between_special_tokens=True
            ),
            truncation=truncation,
        )


def _plain(terminal: text_pb2.TextTerminal) -> dict[str, Any]:
    """Returns a terminal's fields without the handle, which differs between runs, and the text, which the fold has."""
    names = ("reason", "stop_string", "prompt_tokens", "output_tokens", "cached_tokens", "numerics_id")
    return {name: getattr(terminal, name) for name in names} | {"error": terminal.error.message}


def _run_worker(endpoint: str, facts: ModelFacts) -> None:
    """Runs a worker with real sockets and messages, and a hash chain as its model."""
    link = EngineLink(endpoint)
    try:
        link.hello()
        link.limits()
        link.register(facts)
        worker = FakeWorker(facts)
        pause = threading.Event()
        while True:
            plan = link.next_plan()
            pause.wait(STEP_SECONDS)
            link.done(worker.execute(plan))
    except EngineGone:
        pass
    finally:
        link.close()
