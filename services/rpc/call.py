"""One submitted request as its caller sees it: what was sent, and the token ids that came back.

That is all a resume needs: the same submit with a higher attempt, the seed and prompt ids of the accepted one, and for
each open choice the tokens that are already there. There is no other recovery mechanism. A call also knows how often
its callee has died at it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from services.rpc.columns import ITEM_BYTES
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2

SubmitT = TypeVar("SubmitT", engine_pb2.Submit, text_pb2.TextSubmit)


class StreamBroken(Exception):
    """The peer broke the contract (a gap in the token indices); the stream is given up and its calls are resumed."""


class AcceptedMessage(Protocol):
    """What engine_pb2.Accepted and text_pb2.TextAccepted have in common."""

    handle: int
    seed: int
    cached_tokens: int


@dataclass
class OpenChoice:
    """A choice without its terminal message yet. `token_ids` is a column of little-endian u32."""

    choice: int
    token_ids: bytearray = field(default_factory=bytearray)
    cached_tokens: int | None = None


class Call(ABC, Generic[SubmitT]):
    """A submit and the state of its choices. Subclasses receive the messages that are fresh."""

    def __init__(self, submit: SubmitT) -> None:
        self._submit: Any = copy_of(submit)
        self.strikes = 0  # deaths of a callee under it, since it last brought a token
        self.starting = False  # a callee has it, and no token has come from there yet
        self.open_choices: dict[int, OpenChoice] = {}
        for choice in submit.choices:
            cached = choice.cached_tokens if choice.HasField("cached_tokens") else None
            self.open_choices[choice.handle] = OpenChoice(choice.choice, bytearray(choice.resumed_token_ids), cached)

    @property
    def request_id(self) -> str:
        return str(self._submit.request_id)

    @abstractmethod
    def fail(self, error: TandemError) -> None:
        """Ends every open choice with this error."""

    def next_submit(self, *, alone: bool, started: Callable[[], None]) -> Any:
        """The message for the next attempt: only open choices, each with the tokens it has. `started` is called when
        the first token has come."""
        self.starting, self._started = True, started
        self._submit.attempt += 1
        self._submit.alone = alone
        del self._submit.choices[:]
        for handle, choice in self.open_choices.items():
            self._submit.choices.append(
                pb.Choice(
                    handle=handle,
                    choice=choice.choice,
                    resumed_token_ids=bytes(choice.token_ids),
                    cached_tokens=choice.cached_tokens,
                )
            )
        return copy_of(self._submit)

    def record_accepted(self, accepted: AcceptedMessage, prompt_token_ids: bytes = b"") -> bool:
        """Keeps what a resume must send back. False for a repeat (a resumed choice is accepted once more)."""
        choice = self.open_choices[accepted.handle]
        repeat = choice.cached_tokens is not None
        if not repeat:
            choice.cached_tokens = accepted.cached_tokens
        self._submit.seed = accepted.seed
        if prompt_token_ids:
            self._submit.prompt_token_ids = prompt_token_ids
        return not repeat

    def record_tokens(self, handle: int, start_index: int, token_ids: bytes) -> bytes:
        """The ids that are new, empty for a repeat. Raises StreamBroken on a gap."""
        known = self.open_choices[handle].token_ids
        skipped = len(known) - start_index * ITEM_BYTES
        if skipped < 0:
            raise StreamBroken(f"handle {handle}: token {len(known) // ITEM_BYTES} expected, {start_index} came")
        fresh = token_ids[skipped:]
        known += fresh
        if fresh and self.starting:
            self.starting, self.strikes = False, 0
            self._started()
        return fresh

    def end(self, handle: int) -> None:
        """The terminal message of a choice has come."""
        del self.open_choices[handle]


def copy_of(submit: SubmitT) -> SubmitT:
    """A call owns its submit: it changes attempt, seed and choices."""
    copy = type(submit)()
    copy.CopyFrom(submit)
    return copy
