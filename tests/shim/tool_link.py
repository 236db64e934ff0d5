"""A link to a tokenizer in this process, for what is not generated: the real tools of a real vocabulary."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import demo
from services.rpc.call import StreamBroken
from services.rpc.errors import unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.tokenizer.find_template import find_template, special_tokens
from services.tokenizer.guarded_encoding import GuardedEncoding
from services.tokenizer.prompt_encoder import PromptEncoder
from services.tokenizer.shim_tools import ShimTools
from services.tokenizer.tokenizer_config import tokenizer_config
from services.tokenizer.vocabulary import Vocabulary
from tests.shim.harness import FACTS, Shim
from tests.tokenizer.parts import connected, inline_rendering

VOCABULARY = Vocabulary(demo.CHECKPOINT)
TEMPLATE = find_template(demo.CHECKPOINT, None)
GUARD = GuardedEncoding(VOCABULARY)
RENDERING = inline_rendering(TEMPLATE, special_tokens(demo.CHECKPOINT), control_tokens=GUARD.control_tokens)


class ToolLink:
    """`dies_after`: pieces after which each call fails, because the peer dies, and the next one connects at once; None:
    it does not. `calls` counts the calls."""

    def __init__(self, max_model_len: int = FACTS.max_model_len, dies_after: int | None = None) -> None:
        self.peer: pb.Hello | None = pb.Hello()
        self.is_ready = True
        self.calls = self.start_locks = 0
        self.broken_locks = 0  # the peer dies while the start lock is asked for, so many times
        self._dies_after = dies_after
        engines, link = connected()
        link.peer.engine.max_model_len = max_model_len
        self._tools = ShimTools(VOCABULARY, PromptEncoder(VOCABULARY, RENDERING, engines, GUARD))

    def Encode(self, request: Any, timeout: float) -> AsyncIterator[text_pb2.EncodedPiece]:
        return self._tools.encode(text_pb2.EncodeRequest.FromString(request.SerializeToString()))

    def Decode(self, request: text_pb2.DecodeRequest, timeout: float) -> AsyncIterator[text_pb2.DecodedPiece]:
        return self._tools.decode(request)

    async def GetTokenizerConfig(self, request: Any, **options: float) -> text_pb2.TokenizerConfig:
        return text_pb2.TokenizerConfig(config_json=tokenizer_config(demo.CHECKPOINT, TEMPLATE))

    async def call_stream(self, rpc: Callable[[Any], AsyncIterator[Any]]) -> AsyncIterator[Any]:
        self.calls += 1
        number = 0
        async for piece in rpc(self):
            if number == self._dies_after:
                self.peer = pb.Hello(epoch=self.calls)
                raise unavailable("the tokenizer could not be reached; try again")
            number += 1
            yield piece

    @contextlib.asynccontextmanager
    async def hold_start_lock(self, *, apart: bool) -> AsyncIterator[None]:
        self.start_locks += 1
        if self.start_locks <= self.broken_locks:
            raise StreamBroken("the peer is gone")
        yield

    async def call_unary(self, rpc: Callable[[Any], Any]) -> Any:
        self.calls += 1
        return await rpc(self)


def with_tools(*links: ToolLink, **options: Any) -> Shim:
    """Returns a connected shim whose tokenizers answer what is not generated; one without `links`."""
    shim = Shim(connected=True, **options)
    client: Any = shim.client
    client.links += links or [ToolLink()]
    return shim
