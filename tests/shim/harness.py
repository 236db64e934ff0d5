"""The shim's application without sockets: with no tokenizer, or with one that is connected and never answers."""

from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from services.engine.codec import engine_facts
from services.options.declarations import ShimOptions
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.hello import make_hello
from services.shim.app import make_app
from services.shim.generation import Generation
from services.shim.metrics import ShimMetrics
from services.shim.scrape import Scrape
from services.shim.tokenizer_client import TokenizerClient
from services.telemetry.tracing import set_up_tracing
from tests.fakes import make_facts

FACTS = engine_facts(make_facts(), max_num_seqs=8, max_n=128, max_num_queued_reqs=640)
LIMITS = FACTS.limits


@dataclass(eq=False)
class FakeLink:
    """Keeps what is sent to the tokenizer; the test sends the answers with TokenizerClient.receive."""

    peer: pb.Hello | None = field(default_factory=lambda: pb.Hello(epoch=5, engine=FACTS))
    entries: list[text_pb2.TextEntry] = field(default_factory=list)

    def put(self, entry: text_pb2.TextEntry) -> None:
        self.entries.append(entry)


class Shim:
    """`link` is up if `connected`."""

    def __init__(self, *, connected: bool = False, **options: Any) -> None:
        self.registry = CollectorRegistry()
        self.client = TokenizerClient((), make_hello("shim"))
        self.link: Any = FakeLink()
        self.open_generations: set[Generation] = set()
        if connected:
            self.client.link_up(self.link)
        self.app: ASGIApp = make_app(
            self.client,
            self.open_generations,
            ShimOptions(**options),
            ShimMetrics(self.registry),
            Scrape(self.registry, ()),
            set_up_tracing("shim", None),
        )

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test")

    def receive(self, **batch: Any) -> None:
        """A message of the tokenizer."""
        self.client.receive(self.link, text_pb2.TextUp(batch=text_pb2.TextBatch(epoch=5, **batch)))


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The body's error, in OpenAI's shape and no other."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return dict(body["error"])
