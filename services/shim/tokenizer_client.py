"""The links to all tokenizers. Passes each message to the call that it belongs to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from services.options.common import RESUME_WAIT
from services.rpc.dispatcher import Dispatcher
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2, text_pb2_grpc
from services.rpc.link import ADMINISTRATION_SECONDS, Link, call_all, call_one, stream_one
from services.security.secret import ClusterSecret
from services.shim.bulk import submit_entry, text_down
from services.shim.text_call import TextCall
from services.shim.text_rows import rows_of

LOSS_SECONDS = 0.1  # from a call that fails because the peer has died until its stream has told so
_SERVICE = text_pb2.DESCRIPTOR.services_by_name["TextService"]
AnswerT = TypeVar("AnswerT")
TextUplink = Link[text_pb2.TextEntry, text_pb2.TextUp]


class _Stub(text_pb2_grpc.TextServiceStub):
    """The tokenizer's stub. Its stream and Encode also take what bulk.py makes of large submits."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        super().__init__(channel)  # type: ignore[no-untyped-call]
        self.Connect = channel.stream_stream(
            f"/{_SERVICE.full_name}/Connect",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=text_pb2.TextUp.FromString,
        )
        self.Encode = channel.unary_stream(
            f"/{_SERVICE.full_name}/Encode",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=text_pb2.EncodedPiece.FromString,
        )


class TokenizerClient:
    """The links to the tokenizers at the addresses `targets`. services/shim/service.py runs each of `links` as a task.

    `secret`: for TCP addresses. A link's `run` raises Fatal for an unprotected address. `resume_wait`: seconds that new
    requests wait for a tokenizer. `worked` is called for requests that are accepted.
    """

    def __init__(
        self,
        targets: tuple[str, ...],
        hello: pb.Hello,
        secret: ClusterSecret | None = None,
        *,
        resume_wait: float = RESUME_WAIT,
        worked: Callable[[], None] = lambda: None,
    ) -> None:
        self._worked = worked
        self.dispatcher: Dispatcher[TextCall] = Dispatcher(
            submit_entry, lambda abort: text_pb2.TextEntry(abort=abort), resume_wait
        )
        self.links: list[TextUplink] = [
            Link(target, _Stub, text_down, hello, "tokenizer", self, secret) for target in targets
        ]

    def facts(self) -> pb.EngineFacts | None:
        """Returns the engine's facts from the hello of the tokenizer that connected last; None before the first one."""
        peer = self.dispatcher.peer
        return peer.engine if peer is not None else None

    async def reset_prefix_cache(self) -> None:
        """Empties the prefix cache of every engine.

        Raises TandemError (UNAVAILABLE) if a tokenizer is not connected or fails.
        """
        request = pb.ResetPrefixCacheRequest()
        await self.dispatcher.outage.wait()
        await call_all(self.links, lambda stub: stub.ResetPrefixCache(request, timeout=ADMINISTRATION_SECONDS))

    async def model_info(self) -> pb.ModelInfo:
        """Returns what a tokenizer knows of the model. Raises TandemError (UNAVAILABLE) if none answers."""
        request = pb.GetModelInfoRequest()
        return await self.ask_one(lambda stub: stub.GetModelInfo(request, timeout=ADMINISTRATION_SECONDS))

    async def ask_one(self, rpc: Callable[[Any], Awaitable[AnswerT]]) -> AnswerT:
        """Returns the response of `rpc`, which makes a unary call on a stub, from the first tokenizer that gives one.

        Waits through an outage as new requests do. Raises TandemError (UNAVAILABLE) if none answers.
        """
        while True:
            await self.dispatcher.outage.wait()
            peers = [link.peer for link in self.links]
            try:
                return await call_one(self.links, rpc)
            except TandemError as error:
                await self._raise_unless_lost(error, peers)

    async def _raise_unless_lost(self, error: TandemError, peers: list[pb.Hello | None]) -> None:
        """Raises the error of a call unless one of the peers that were there at its begin is lost."""
        await asyncio.sleep(LOSS_SECONDS)
        if all(link.peer is peer for link, peer in zip(self.links, peers, strict=True)):
            raise error

    async def engine_stats(self) -> list[engine_pb2.EngineStats]:
        """Returns the state of each engine that one tokenizer is connected to, as all are connected to the same ones.

        Raises TandemError (UNAVAILABLE) if no tokenizer answers.
        """
        request = engine_pb2.GetStatsRequest()
        stats: text_pb2.AllEngineStats = await self.ask_one(
            lambda stub: stub.GetStats(request, timeout=ADMINISTRATION_SECONDS)
        )
        return list(stats.engines)

    async def tokenizer_pieces(self) -> AsyncIterator[text_pb2.TokenizerPiece]:
        """Yields the archive of the tokenizer's files in pieces, the same ones from each tokenizer: if one dies, the
        next one sends the rest. Waits as `ask_one` does. Raises TandemError (UNAVAILABLE) if none is connected, or it
        fails.
        """
        request, given = text_pb2.GetTokenizerRequest(), 0
        while True:
            await self.dispatcher.outage.wait()
            peers, index = [link.peer for link in self.links], 0
            try:
                async for piece in stream_one(
                    self.links, lambda stub: stub.GetTokenizer(request, timeout=ADMINISTRATION_SECONDS)
                ):
                    index += 1
                    if index > given:
                        given = index
                        yield piece
                return
            except TandemError as error:
                await self._raise_unless_lost(error, peers)

    def link_up(self, link: TextUplink) -> None:
        self.dispatcher.link_up(link)

    def link_down(self, link: TextUplink, *, died: bool) -> None:
        self.dispatcher.link_down(link, died=died)

    def readiness_changed(self, link: TextUplink) -> None:
        self.dispatcher.readiness_changed()

    def receive(self, link: TextUplink, message: text_pb2.TextUp) -> None:
        batch = message.batch
        if link.peer is None or batch.epoch != link.peer.epoch:
            return  # from an earlier incarnation of the peer
        if batch.accepted:
            self._worked()
        for accepted in batch.accepted:
            if (call := self.dispatcher.find(link, accepted.handle)) is not None:
                call.on_accepted(accepted)
        for scored in batch.prompt_logprobs:
            if (call := self.dispatcher.find(link, scored.logprobs.handle)) is not None:
                call.on_prompt_logprobs(scored)
        for row in rows_of(batch):
            if (call := self.dispatcher.find(link, row[0])) is not None:
                call.on_row(*row)
        for terminal in batch.terminals:
            if (call := self.dispatcher.find(link, terminal.handle)) is not None:
                self.dispatcher.end(link, terminal.handle)
                call.on_terminal(terminal)
