"""One HTTP request's calls to the tokenizers, and the mailbox in which their answers wait for the client.

A slow client delays nobody: what comes for one choice merges until the client takes it.
"""

import asyncio
from dataclasses import dataclass, field

from services.rpc.call import Call, StreamBroken
from services.rpc.columns import ITEM_BYTES
from services.rpc.dispatcher import Dispatcher
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2, text_pb2_grpc
from services.rpc.link import ADMINISTRATION_SECONDS, Link, call_all
from services.security.secret import ClusterSecret
from services.shim.telemetry import RequestTelemetry

TextUplink = Link[text_pb2.TextEntry, text_pb2.TextUp]


@dataclass(slots=True)
class Update:
    """What is new of one choice: text with the token ids that released it, then the terminal message."""

    index: int
    content: str = ""
    token_ids: bytearray = field(default_factory=bytearray)
    logprobs: list[text_pb2.TokenLogprobs] = field(default_factory=list)
    terminal: text_pb2.TextTerminal | None = None


class Updates:
    """Merged per choice; one reader."""

    def __init__(self) -> None:
        self._pending: dict[int, Update] = {}
        self._reader: asyncio.Future[None] | None = None  # while it waits; lighter than an Event, at each token
        self._accepted = False

    def touch(self, index: int) -> Update:
        """The pending update of a choice, to be added to."""
        update = self._pending.get(index)
        if update is None:
            update = self._pending[index] = Update(index)
            self._wake()
        return update

    def accept(self) -> None:
        """A choice runs, so its prompt is valid."""
        self._accepted = True
        self._wake()

    async def wait(self) -> None:
        """Until something is pending or the request is accepted."""
        while not self._pending and not self._accepted:
            await self._woken()

    async def take(self) -> list[Update]:
        """Waits until there is something, then takes all of it."""
        while not self._pending:
            await self._woken()
        taken, self._pending = list(self._pending.values()), {}
        return taken

    def error(self) -> TandemError | None:
        """The error of a pending choice that failed."""
        for update in self._pending.values():
            if update.terminal is not None and update.terminal.HasField("error"):
                return TandemError.from_proto(update.terminal.error)
        return None

    def _woken(self) -> asyncio.Future[None]:
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class TextCall(Call[text_pb2.TextSubmit]):
    """`first_index` is the index of the submit's first choice among all choices of the HTTP request."""

    def __init__(
        self, submit: text_pb2.TextSubmit, first_index: int, updates: Updates, record: RequestTelemetry
    ) -> None:
        super().__init__(submit)
        self._record = record
        self._max_tokens = submit.sampling.max_tokens if submit.sampling.HasField("max_tokens") else None
        self._indices = {choice.handle: first_index + choice.choice for choice in submit.choices}
        self._updates = updates
        self.prompt_token_ids = b""

    def on_accepted(self, accepted: text_pb2.TextAccepted) -> None:
        if self.record_accepted(accepted, accepted.prompt_token_ids):
            if not self.prompt_token_ids:
                self.prompt_token_ids = accepted.prompt_token_ids
                num_tokens = len(self.prompt_token_ids) // ITEM_BYTES
                self._record.accepted(self._indices.values(), self._max_tokens, num_tokens, accepted.cached_tokens)
            self._updates.accept()

    def on_event(self, event: text_pb2.TextEvent) -> None:
        """Raises StreamBroken on a gap, or when only a part of the event is new: its text cannot be cut."""
        handle, token_ids = event.handle, event.token_ids
        fresh = self.record_tokens(handle, event.start_index, token_ids)
        if not fresh:
            return
        if len(fresh) < len(token_ids):
            raise StreamBroken(f"handle {handle}: {len(fresh) // ITEM_BYTES} of the event's tokens are new")
        index = self._indices[handle]
        update = self._updates.touch(index)
        update.content += event.content
        update.token_ids += fresh
        update.logprobs.extend(event.logprobs)
        self._record.tokens(index, len(fresh) // ITEM_BYTES)

    def fail(self, error: TandemError) -> None:
        for handle in list(self.open_choices):
            self.end(handle)
            self.on_terminal(_failed(error, handle))

    def cut_off(self, error: TandemError) -> None:
        """The client is told; for the record it has hung up."""
        for handle in self.open_choices:
            self._updates.touch(self._indices[handle]).terminal = _failed(error, handle)

    def on_terminal(self, terminal: text_pb2.TextTerminal) -> None:
        index = self._indices[terminal.handle]
        update = self._updates.touch(index)
        update.content += terminal.content
        update.terminal = terminal
        self._record.ended(index, terminal)


class TokenizerClient:
    """One per shim process; owns the links to all tokenizers."""

    def __init__(self, targets: tuple[str, ...], hello: pb.Hello, secret: ClusterSecret | None = None) -> None:
        self.dispatcher: Dispatcher[TextCall] = Dispatcher(
            lambda submit: text_pb2.TextEntry(submit=submit), lambda abort: text_pb2.TextEntry(abort=abort)
        )
        self.links: list[TextUplink] = [
            Link(target, text_pb2_grpc.TextServiceStub, text_pb2.TextDown, hello, "tokenizer", self, secret)
            for target in targets
        ]
        self.generations: set[Generation] = set()  # those that are not closed yet

    async def reset_prefix_cache(self) -> None:
        """Of every engine behind every tokenizer. Raises TandemError (UNAVAILABLE) unless all have done it."""
        request = pb.ResetPrefixCacheRequest()
        await call_all(self.links, lambda stub: stub.ResetPrefixCache(request, timeout=ADMINISTRATION_SECONDS))

    def link_up(self, link: TextUplink) -> None:
        self.dispatcher.link_up(link)

    def link_down(self, link: TextUplink, *, died: bool) -> None:
        self.dispatcher.link_down(link, died=died)

    def receive(self, link: TextUplink, message: text_pb2.TextUp) -> None:
        batch = message.batch
        if link.peer is None or batch.epoch != link.peer.epoch:
            return  # from a dead incarnation
        for accepted in batch.accepted:
            if (call := self.dispatcher.find(link, accepted.handle)) is not None:
                call.on_accepted(accepted)
        for event in batch.events:
            if (call := self.dispatcher.find(link, event.handle)) is not None:
                call.on_event(event)
        for terminal in batch.terminals:
            if (call := self.dispatcher.find(link, terminal.handle)) is not None:
                self.dispatcher.end(link, terminal.handle)
                call.on_terminal(terminal)


class Generation:
    """All choices of one HTTP request. Whoever makes one closes it, so that a client's hang-up stops the work."""

    def __init__(self, client: TokenizerClient, submits: list[text_pb2.TextSubmit], record: RequestTelemetry) -> None:
        """Raises TandemError when no tokenizer is connected."""
        self._record = record
        self._open_ones = client.generations
        self._dispatcher = client.dispatcher
        self._updates = Updates()
        self.take = self._updates.take
        self.num_choices = sum(len(submit.choices) for submit in submits)
        self.calls: list[TextCall] = []
        first_index = 0
        for submit in submits:
            self.calls.append(TextCall(submit, first_index, self._updates, record))
            first_index += len(submit.choices)
        record.submitted(first_index)
        try:
            for call in self.calls:
                self._dispatcher.start(call)
        except TandemError as error:
            record.refuse(error.code)
            record.close()
            raise
        self._open_ones.add(self)

    async def accepted(self) -> None:
        """Returns once the request runs. Raises its TandemError when it was refused instead."""
        await self._updates.wait()
        error = self._updates.error()
        if error is not None:
            raise error

    def fail(self, error: TandemError) -> None:
        """Ends every open choice with this error; the client is told."""
        for call in self.calls:
            call.cut_off(error)

    def close(self) -> None:
        """Aborts what still runs."""
        for call in self.calls:
            self._dispatcher.abort(call)
        self._record.close()
        self._open_ones.discard(self)


def _failed(error: TandemError, handle: int) -> text_pb2.TextTerminal:
    return text_pb2.TextTerminal(handle=handle, reason=pb.FINISH_REASON_ERROR, error=error.to_proto())
