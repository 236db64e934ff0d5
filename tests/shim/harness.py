"""The shim's application without sockets. The test plays the tokenizer: it reads submits and sends messages."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from services.engine.codec import engine_facts
from services.options.declarations import ShimOptions
from services.rpc.columns import pack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.hello import make_hello
from services.shim.access.rules import access_rules
from services.shim.app import make_app
from services.shim.bulk import BulkEntry
from services.shim.generation import Generation
from services.shim.generations import Generations
from services.shim.in_progress import InProgress
from services.shim.metrics import ShimMetrics
from services.shim.preparer import Preparer
from services.shim.scrape import Scrape
from services.shim.telemetry import RequestTelemetry
from services.shim.tokenizer_client import TokenizerClient
from services.telemetry.spans import NO_SPAN, NoTracing, Tracing
from tests.fakes import make_facts

EPOCH = 5
FACTS = engine_facts(make_facts(), max_num_seqs=8, max_n=128, max_num_queued_reqs=640)
FACTS.model = "/models/fake"
LIMITS = FACTS.limits
JSON = "application/json"


@dataclass(eq=False)
class FakeLink:
    """A link to the tokenizer that keeps what is put, in order."""

    peer: pb.Hello | None = field(default_factory=lambda: pb.Hello(epoch=EPOCH, engine=FACTS))
    is_ready: bool = True
    is_served: bool = True
    entries: "asyncio.Queue[text_pb2.TextEntry]" = field(default_factory=asyncio.Queue)

    def put(self, entry: text_pb2.TextEntry | BulkEntry) -> None:
        if isinstance(entry, BulkEntry):
            (entry,) = text_pb2.TextDown.FromString(entry.wire).entries
        self.entries.put_nowait(entry)


class Shim:
    """The application with a client of the tokenizer; its link is up if `connected`. `options` are the shim's;
    `bound`: the address that it would listen on."""

    def __init__(
        self, *, connected: bool = False, tracing: Tracing | None = None, bound: str = "", **options: Any
    ) -> None:
        self.registry = CollectorRegistry()
        self.options = ShimOptions(**options)
        self.client = TokenizerClient((), make_hello("shim"), resume_wait=self.options.resume_wait)
        self.link: Any = FakeLink()
        if connected:
            self.client.link_up(self.link)
        self.access = access_rules(self.options, bound)
        self.metrics = ShimMetrics(self.registry)
        self.generations = Generations(self.client, self.metrics, tracing or NoTracing())
        self.open_generations = self.generations.open
        self.in_progress = InProgress(self.options.max_concurrent_requests, self.metrics)
        self.preparer = Preparer(self.options)
        scrape = Scrape(self.registry, ())
        self.app: ASGIApp = make_app(
            self.generations, self.preparer, self.in_progress, self.access, self.metrics, scrape
        )

    @property
    def routes(self) -> list[Any]:
        """Starlette's own list of the routes, inside all middleware."""
        app: Any = self.app
        while not hasattr(app, "routes"):
            app = getattr(app, "app", None) or app._app
        routes: list[Any] = app.routes
        return routes

    def http(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(transport=transport, base_url="http://test", headers={"content-type": JSON})

    def start(self, *num_choices: int) -> tuple[Generation, list[int]]:
        """Starts a generation with one prompt for each number of choices. Returns it and the handles of all choices."""
        new_handle = self.client.dispatcher.new_handle
        submits = [
            text_pb2.TextSubmit(choices=[pb.Choice(handle=new_handle(), choice=choice) for choice in range(count)])
            for count in num_choices
        ]
        telemetry = RequestTelemetry("test", ShimMetrics(CollectorRegistry()).of("fake"), NO_SPAN)
        generation = Generation(self.client, submits, telemetry, self.open_generations)
        return generation, [choice.handle for submit in submits for choice in submit.choices]

    async def sent(self) -> text_pb2.TextEntry:
        """Returns the next entry that the shim sends to the tokenizer. Waits for it, at most 10 s."""
        return await asyncio.wait_for(self.link.entries.get(), 10)

    def accept(self, handle: int, prompt: Iterable[int] = (), **fields: Any) -> None:
        accepted = text_pb2.TextAccepted(handle=handle, prompt_token_ids=pack_u32(prompt), **fields)
        self.receive(text_pb2.TextBatch(epoch=EPOCH, accepted=[accepted]))

    def event(
        self,
        handle: int,
        start_index: int,
        token_ids: Sequence[int],
        *content: str,
        kinds: bytes = b"",
        logprobs: Sequence[text_pb2.TokenLogprobs] = (),
    ) -> None:
        """Sends one row. `content`: its pieces; without `kinds` an empty one is left out. `kinds`: as in
        TextBatch.piece_kinds."""
        self.receive(row(handle, start_index, token_ids, *content, kinds=kinds, logprobs=logprobs))

    def end(
        self, handle: int, reason: Any = pb.FINISH_REASON_STOP, *, content: str = "", kinds: bytes = b"", **fields: Any
    ) -> None:
        """Sends the terminal message of a choice. `content`: the text that was held back."""
        pieces = [content] if content else []
        terminal = text_pb2.TextTerminal(handle=handle, reason=reason, pieces=pieces, piece_kinds=kinds, **fields)
        self.receive(text_pb2.TextBatch(epoch=EPOCH, terminals=[terminal]))

    def fail(self, handle: int, error: TandemError) -> None:
        self.end(handle, pb.FINISH_REASON_ERROR, error=error.to_proto())

    def receive(self, batch: text_pb2.TextBatch) -> None:
        self.client.receive(self.link, text_pb2.TextUp(batch=batch))


def row(
    handle: int,
    start_index: int,
    token_ids: Sequence[int],
    *content: str,
    kinds: bytes = b"",
    logprobs: Sequence[text_pb2.TokenLogprobs] = (),
) -> text_pb2.TextBatch:
    """Returns a message with one row. `content`, `kinds`: as in Shim.event."""
    pieces = list(content) if kinds else [piece for piece in content if piece]
    return text_pb2.TextBatch(
        epoch=EPOCH,
        handles=pack_u32([handle]),
        start_indices=pack_u32([start_index]),
        counts=pack_u32([len(token_ids)]),
        token_ids=pack_u32(token_ids),
        piece_counts=pack_u32([len(pieces)]),
        piece_kinds=kinds,
        pieces=pieces,
        logprob_counts=pack_u32([len(logprobs)]) if logprobs else b"",
        logprobs=logprobs,
    )


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """Returns the body's error. Asserts the status and that the error has OpenAI's shape and no other."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return dict(body["error"])
