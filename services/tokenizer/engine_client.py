"""The tokenizer's calls to the engines: sends submits, checks the steps' messages, and passes them to the listeners."""

import asyncio
import operator
from typing import Protocol

from services.options.common import RESUME_WAIT
from services.rpc.call import Call, StreamBroken
from services.rpc.columns import ITEM_BYTES, unpack_f32, unpack_u32
from services.rpc.dispatcher import Dispatcher
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, engine_pb2_grpc
from services.rpc.link import ADMINISTRATION_SECONDS, Link, call_all
from services.security.secret import ClusterSecret

STATS_SECONDS = 2.0  # timeout; the engine's event loop answers, not its steps
EngineUplink = Link[engine_pb2.EngineEntry, engine_pb2.EngineUp]


class TokenLogprobColumns:
    """Logprobs (natural logarithms) of consecutive tokens of a choice, flat: `width` token ids and values per token,
    the sampled token's first, then the top ones'. Width 0: no logprobs."""

    def __init__(self, width: int, token_ids: list[int], values: list[float]) -> None:
        self.width = width
        self._token_ids = token_ids
        self._values = values

    def of_token(self, index: int) -> list[tuple[int, float]]:
        """Returns the `width` (token id, logprob) pairs at token `index`: the sampled token's, then the top ones'."""
        span = slice(index * self.width, (index + 1) * self.width)
        return list(zip(self._token_ids[span], self._values[span], strict=True))


NO_LOGPROBS = TokenLogprobColumns(0, [], [])


class Listener(Protocol):
    """Receives the events of an EngineCall, by the handles of its submit. Per handle: `accepted` at most once, then
    `prompt_logprobs` and then `tokens` any number of times, then `ended` once. An aborted handle gets no more calls."""

    def accepted(self, handle: int, accepted: engine_pb2.Accepted) -> None: ...
    def prompt_logprobs(self, scored: pb.PromptLogprobs) -> None: ...
    def tokens(self, handle: int, start_index: int, token_ids: list[int], logprobs: TokenLogprobColumns) -> None: ...
    def ended(self, handle: int, terminal: engine_pb2.Terminal) -> None: ...


class EngineCall(Call[engine_pb2.Submit]):
    """A submit to an engine, with the listener for its events."""

    def __init__(self, submit: engine_pb2.Submit, listener: Listener) -> None:
        super().__init__(submit)
        self.listener = listener

    def fail(self, error: TandemError) -> None:
        for handle in list(self.open_choices):
            self.end(handle)
            self.listener.ended(
                handle, engine_pb2.Terminal(handle=handle, reason=pb.FINISH_REASON_ERROR, error=error.to_proto())
            )


class EngineClient:
    """The links to the engines at the addresses `targets`; the process runs each of `links` as a task.

    `secret`: for TCP addresses. A link's `run` raises Fatal for an unprotected address. `resume_wait`: seconds that new
    requests wait for an engine.
    """

    def __init__(
        self,
        targets: tuple[str, ...],
        hello: pb.Hello,
        secret: ClusterSecret | None = None,
        *,
        resume_wait: float = RESUME_WAIT,
    ) -> None:
        self.dispatcher: Dispatcher[EngineCall] = Dispatcher(
            lambda submit: engine_pb2.EngineEntry(submit=submit),
            lambda abort: engine_pb2.EngineEntry(abort=abort),
            resume_wait,
        )
        self.links: list[EngineUplink] = [
            Link(target, engine_pb2_grpc.EngineServiceStub, engine_pb2.EngineDown, hello, "engine", self, secret)
            for target in targets
        ]

    async def reset_prefix_cache(self) -> None:
        """Empties the prefix cache of every engine.

        Raises TandemError (UNAVAILABLE) if an engine is not connected or fails.
        """
        request = pb.ResetPrefixCacheRequest()
        await self.dispatcher.outage.wait()
        await call_all(self.links, lambda stub: stub.ResetPrefixCache(request, timeout=ADMINISTRATION_SECONDS))

    async def stats(self) -> list[engine_pb2.EngineStats]:
        """Returns the state of every engine, in the order of the addresses; an empty one if it does not answer."""
        request = engine_pb2.GetStatsRequest()
        calls = [link.call_unary(lambda stub: stub.GetStats(request, timeout=STATS_SECONDS)) for link in self.links]
        results = await asyncio.gather(*calls, return_exceptions=True)
        return [one if isinstance(one, engine_pb2.EngineStats) else engine_pb2.EngineStats() for one in results]

    def link_up(self, link: EngineUplink) -> None:
        self.dispatcher.link_up(link)

    def link_down(self, link: EngineUplink, *, died: bool) -> None:
        self.dispatcher.link_down(link, died=died)

    def readiness_changed(self, link: EngineUplink) -> None:
        self.dispatcher.readiness_changed()

    def receive(self, link: EngineUplink, message: engine_pb2.EngineUp) -> None:
        step = message.step
        if link.peer is None or step.epoch != link.peer.epoch:
            return  # from an earlier incarnation of the engine
        for accepted in step.accepted:
            call = self.dispatcher.find(link, accepted.handle)
            if call is not None and call.record_accepted(accepted):
                call.listener.accepted(accepted.handle, accepted)
        for scored in step.prompt_logprobs:
            call = self.dispatcher.find(link, scored.handle)
            if call is not None and call.record_prompt_logprobs(scored):
                call.listener.prompt_logprobs(scored)
        self._take_rows(link, step)
        for terminal in step.terminals:
            call = self.dispatcher.find(link, terminal.handle)
            if call is not None:
                self.dispatcher.end(link, terminal.handle)
                call.listener.ended(terminal.handle, terminal)

    def _take_rows(self, link: EngineUplink, step: engine_pb2.StepBatch) -> None:
        """Passes each row's tokens to the call's listener, without those received before.

        Raises StreamBroken on a gap in a choice's tokens, a token id outside the vocabulary, or a wrong number of ids
        or logprobs; ValueError for columns of different lengths or of incomplete items.
        """
        handles, start_indices = unpack_u32(step.handles), unpack_u32(step.start_indices)
        counts, widths = unpack_u32(step.counts), unpack_u32(step.logprob_widths)
        column, token_ids = step.token_ids, unpack_u32(step.token_ids)
        logprob_ids, logprobs = unpack_u32(step.logprob_token_ids), unpack_f32(step.logprobs)
        columns = zip(handles, start_indices, counts, widths, strict=True)
        assert link.peer is not None
        if max(token_ids, default=0) >= link.peer.engine.vocab_size or sum(counts) != len(token_ids):
            raise StreamBroken(
                "token_ids: their number differs from the sum of counts, or one is not in the vocabulary"
            )
        if any(widths) and not sum(map(operator.mul, counts, widths)) == len(logprob_ids) == len(logprobs):
            raise StreamBroken("logprobs: their number differs from the one that logprob_widths give")
        token_at = logprob_at = 0
        for handle, start_index, count, width in columns:
            first, token_at = token_at, token_at + count
            first_logprob, logprob_at = logprob_at, logprob_at + count * width
            call = self.dispatcher.find(link, handle)
            if call is None:
                continue
            fresh = call.record_tokens(handle, start_index, column[first * ITEM_BYTES : token_at * ITEM_BYTES])
            if fresh:
                known = count - len(fresh) // ITEM_BYTES
                found = NO_LOGPROBS
                if width:
                    span = slice(first_logprob + known * width, logprob_at)
                    found = TokenLogprobColumns(width, logprob_ids[span], logprobs[span])
                call.listener.tokens(handle, start_index + known, token_ids[first + known : token_at], found)
