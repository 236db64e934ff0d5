"""The demo's tokenizer, and an engine link that a test plays."""

from dataclasses import dataclass, field
from functools import cache

from tokenizers import Tokenizer

import demo
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.hello import make_hello
from services.tokenizer.engine_client import EngineClient

END = 2  # the demo's end-of-turn token


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))


def ids_of(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False).ids)


@dataclass(eq=False)
class FakeEngineLink:
    """A link to an engine that is up; it keeps the entries that are put."""

    peer: pb.Hello = field(
        default_factory=lambda: pb.Hello(
            epoch=5, engine=pb.EngineFacts(vocab_size=100, max_model_len=64, eos_token_ids=[END], numerics_id="n1")
        )
    )
    entries: list[engine_pb2.EngineEntry] = field(default_factory=list)

    def put(self, entry: engine_pb2.EngineEntry) -> None:
        self.entries.append(entry)


def connected() -> tuple[EngineClient, FakeEngineLink]:
    """Returns (an engine client, its only link, which is up)."""
    client, link = EngineClient((), make_hello("tokenizer")), FakeEngineLink()
    client.link_up(link)  # type: ignore[arg-type]
    return client, link
