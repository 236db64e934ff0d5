"""The responses of one program's call: what comes for its choices merges until the next response is written.

The messages of tokenizer and engine have equal field names.
"""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from services.rpc.channel_options import MAX_MESSAGE_BYTES
from services.rpc.errors import TandemError, invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.mailbox import Mailbox

ResponseT = TypeVar("ResponseT", bound=Message)
MAX_ENTRIES = 2**17  # token ids and logprobs of one streamed response; a logprob takes some dozens of bytes


class ResponseMailbox(Mailbox[ResponseT], Generic[ResponseT]):
    """The responses of one Generate call. What arrives before the last one is written merges into the next one.

    Subclasses fill what `started` and `delta` return, and call `changed` afterwards; `end` ends a choice.
    """

    def __init__(self, response: type[ResponseT], *, stream: bool) -> None:
        super().__init__()
        self._new = response
        self._stream = stream
        self._open: set[int] = set()
        self._first = 0
        self._full: list[Any] = []  # responses that take no more
        self._pending: Any = response()  # None once the last one is taken
        self._deltas: dict[int, Any] = {}  # the choices in `_pending`
        self._num_entries = 0
        self._is_started = False
        self._usage = pb.Usage()
        self._error: TandemError | None = None

    def expect(self, choices: Iterable[pb.Choice]) -> None:
        """Sets the choices of the call, before any of them starts."""
        self._open = {choice.handle for choice in choices}
        self._first = min(self._open)
        if not self._stream:  # a whole answer has the choices in order
            for index in sorted(self._open):
                self.delta(index)

    @property
    def is_done(self) -> bool:
        """Whether the last response has been taken."""
        return self._pending is None

    def started(self) -> Any:
        """Returns the `started` message to fill at the first call, then None."""
        if self._is_started:
            return None
        self._is_started = True
        return self._pending.started

    def delta(self, index: int) -> Any:
        """Returns what the next response adds to a choice."""
        found = self._deltas.get(index)
        if found is None:
            found = self._deltas[index] = self._pending.choices.add(index=index)
        return found

    def changed(self, num_entries: int) -> None:
        """Reports `num_entries` new token ids and logprobs in the next response, which is ready if it is streamed."""
        self._num_entries += num_entries
        if self._stream:
            if self._num_entries >= MAX_ENTRIES:
                self._full.append(self._pending)
                self._pending, self._deltas, self._num_entries = self._new(), {}, 0
            self._wake.set()

    def add_prompt_logprobs(self, scored: Any, num_entries: int) -> None:
        """Adds logprobs of the prompt, `num_entries` of them, to the next response."""
        self._pending.prompt_logprobs.append(scored)
        self.changed(num_entries)

    def end(self, terminal: engine_pb2.Terminal | text_pb2.TextTerminal) -> None:
        """Ends a choice; its delta is complete. The last end makes the last response ready.

        The usage has the cached tokens of the first choice, as over HTTP. An error ends the call: `take` raises it.
        """
        self._open.discard(terminal.handle)
        if terminal.reason == pb.FINISH_REASON_ERROR:
            self._error = TandemError.from_proto(terminal.error)
        usage = self._usage
        usage.prompt_tokens = terminal.prompt_tokens
        usage.output_tokens += terminal.output_tokens
        if isinstance(terminal, text_pb2.TextTerminal):
            usage.reasoning_tokens += terminal.reasoning_tokens
        if terminal.handle == self._first:
            usage.cached_tokens = terminal.cached_tokens
        if not self._open:
            self._pending.usage.CopyFrom(usage)
        if self._stream or not self._open or self._error is not None:
            self._wake.set()

    def take(self) -> ResponseT:
        """Removes and returns the next response. Raises the TandemError of a choice that failed, and one
        (INVALID_ARGUMENT) for a whole answer that is too large for a message."""
        if self._error is not None:
            raise self._error
        if self._full:
            if len(self._full) > 1 or self._num_entries or self._deltas or not self._open:
                self._wake.set()
            return self._full.pop(0)  # type: ignore[no-any-return]
        taken, self._deltas, self._num_entries = self._pending, {}, 0
        self._pending = self._new() if self._open else None
        if not self._stream:
            check_answer_size(taken)
        return taken  # type: ignore[no-any-return]


def check_answer_size(answer: Message) -> None:
    """Raises TandemError (INVALID_ARGUMENT) for a whole answer that is too large for a message."""
    if (size := answer.ByteSize()) > MAX_MESSAGE_BYTES:
        raise invalid(
            f"the answer has {size} bytes, but a message has at most {MAX_MESSAGE_BYTES}: set stream", "stream"
        )
