"""The demo's tokenizer, an engine link that a test plays, and the rows of a text batch."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer

import demo
from services.rpc.columns import unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.hello import make_hello
from services.rpc.pieces import CONTENT, Piece, unpacked
from services.tokenizer.answer_grammar import AnswerGrammars
from services.tokenizer.chat_renderer import ChatRenderer, RendererSettings
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.grammar_checks import GrammarChecks
from services.tokenizer.known_grammars import KnownGrammars
from services.tokenizer.output_resolver import OutputResolver
from services.tokenizer.parsing.answer_format import AnswerFormats
from services.tokenizer.parsing.catalog import built_in
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.rendering_worker import TextLimits
from services.tokenizer.vocabulary import Vocabulary

END = 2  # the demo's end-of-turn token


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))


@dataclass(frozen=True)
class InlineRendering:
    """Renders each chat in this process, without limits."""

    renderer: ChatRenderer

    async def render(self, chat: text_pb2.ChatInput, tools_json: bytes, limits: TextLimits) -> PromptText:
        return self.renderer.render(chat, tools_json)


def inline_rendering(template: str | None, variables: dict[str, str] | None = None, **settings: Any) -> InlineRendering:
    """`settings`: more fields of RendererSettings."""
    return InlineRendering(ChatRenderer(RendererSettings(template, variables or {}, **settings)))


@cache
def answer_formats(tools: str, reasoning: str) -> AnswerFormats:
    """Formats of the demo's answers by name."""
    catalog = built_in()
    return AnswerFormats(Vocabulary(demo.CHECKPOINT), catalog.tools[tools], catalog.reasoning[reasoning])


def output_resolver(engines: EngineClient, formats: AnswerFormats) -> OutputResolver:
    """The demo's resolver, with a registry of its own."""
    return OutputResolver(
        Vocabulary(demo.CHECKPOINT),
        engines,
        AnswerGrammars(formats),
        KnownGrammars(demo.CHECKPOINT),
        GrammarChecks(CollectorRegistry()),
    )


def ids_of(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False).ids)


@dataclass(eq=False)
class FakeEngineLink:
    """A link to an engine that is up; it keeps the entries that are put."""

    is_ready = is_served = True
    peer: pb.Hello = field(
        default_factory=lambda: pb.Hello(
            epoch=5,
            engine=pb.EngineFacts(
                vocab_size=100,
                max_model_len=64,
                eos_token_ids=[END],
                numerics_id="n1",
                limits=pb.RequestLimits(max_n=8),
            ),
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


@dataclass(frozen=True)
class Row:
    """One row of a TextBatch."""

    handle: int
    start_index: int
    token_ids: list[int]
    pieces: list[Piece]
    logprobs: list[text_pb2.TokenLogprobs]

    @property
    def content(self) -> str:
        """The row's text, which must be content."""
        assert all(kind == CONTENT for kind, _ in self.pieces)
        return "".join(text for _, text in self.pieces)


def rows_of(batch: text_pb2.TextBatch) -> list[Row]:
    """Returns the rows of the columns. Raises ValueError if the columns' lengths do not fit together."""
    handles, starts, counts = unpack_u32(batch.handles), unpack_u32(batch.start_indices), unpack_u32(batch.counts)
    piece_counts = unpack_u32(batch.piece_counts)
    logprob_counts = unpack_u32(batch.logprob_counts) or [0] * len(handles)
    token_ids, pieces = unpack_u32(batch.token_ids), unpacked(batch.pieces, batch.piece_kinds)
    logprobs, rows = list(batch.logprobs), []
    for handle, start, *numbers in zip(handles, starts, counts, piece_counts, logprob_counts, strict=True):
        own = []
        columns: tuple[list[Any], ...] = (token_ids, pieces, logprobs)
        for column, number in zip(columns, numbers, strict=True):
            own.append(column[:number])
            del column[:number]
        rows.append(Row(handle, start, *own))
    if token_ids or pieces or logprobs:
        raise ValueError("a column has more entries than its counts say")
    return rows
