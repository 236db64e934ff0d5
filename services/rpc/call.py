"""One submitted request as its caller sees it: the submit message and the token ids received so far.

A resume sends the same submit with a higher attempt, the seed and RESOLVED_FIELDS of the accepted one, the tokens
received of each open choice, and how long the request has waited. There is no other recovery mechanism. A call also
counts its strikes, which services/rpc/dispatcher.py defines.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from services.rpc.columns import ITEM_BYTES
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.waited import Waited

# Tokens of each choice by which an attempt clears its call: a call that has lived through a death may have been why,
# and have got some tokens before it killed again. So each further death soon after one makes the next trial longer.
TRIALS = (1, 4, 16, 64)
SubmitT = TypeVar("SubmitT", engine_pb2.Submit, text_pb2.TextSubmit)
# What the callee resolved of a submit: fields of the accepted message that a resume sends in the submit's field of the
# same name, so that the next callee resolves nothing again.
RESOLVED_FIELDS: dict[type[Message], tuple[str, ...]] = {
    engine_pb2.Accepted: ("numerics_id",),
    text_pb2.TextAccepted: ("prompt_token_ids", "resolved", "numerics_id"),
}


class StreamBroken(Exception):
    """The peer broke the protocol, for example by a gap in token indices: the stream's calls resume, without a strike.

    Also: no hello or no start lock, because the peer is stopping or gone.
    """


@dataclass
class OpenChoice:
    """A choice without a terminal message. `token_ids`: its output so far, a column of little-endian u32.

    `cached_tokens`: prompt tokens that the engine found in its prefix cache; None until the choice is accepted.
    `prompt_logprobs_from`: index of the first prompt token whose logprobs, if requested, have not been received.
    """

    choice: int
    token_ids: bytearray = field(default_factory=bytearray)
    cached_tokens: int | None = None
    prompt_logprobs_from: int = 1


class Call(ABC, Generic[SubmitT]):
    """A submit message and its open choices, by handle. Subclasses pass new tokens on to their reader."""

    def __init__(self, submit: SubmitT) -> None:
        self._submit: Any = _copy(submit)
        self._waited = Waited(submit.waited_ms)
        self.strikes = 0  # deaths of a callee while this call was starting, since it last was not
        # An index into TRIALS; at first the caller's, if that runs the call alone.
        self._trial = next(index for index, one in enumerate(TRIALS) if one >= min(submit.trial_tokens, TRIALS[-1]))
        self._on_trial: dict[int, int] = {}  # while starting: handle -> new tokens that end the choice's trial
        self._began: dict[int, int] = {}  # bytes of token ids with which the attempt began, by handle
        self.open_choices: dict[int, OpenChoice] = {}
        for choice in submit.choices:
            cached = choice.cached_tokens if choice.HasField("cached_tokens") else None
            resumed, scored_from = bytearray(choice.resumed_token_ids), max(1, choice.prompt_logprobs_from)
            self.open_choices[choice.handle] = OpenChoice(choice.choice, resumed, cached, scored_from)

    @property
    def request_id(self) -> str:
        return str(self._submit.request_id)

    @property
    def numerics_id(self) -> str:
        """The numerics_id under which the call was accepted; empty before. No other one can continue it."""
        return str(self._submit.numerics_id)

    @property
    def starting(self) -> bool:
        """Whether the callee has not yet sent as many new tokens of each open choice as a trial takes."""
        return bool(self._on_trial)

    @property
    def is_accepted(self) -> bool:
        """Whether an engine has accepted one of its choices, which may have ended since, in any attempt."""
        accepted = (choice.cached_tokens is not None for choice in self.open_choices.values())
        return bool(self._submit.numerics_id) or any(accepted)

    @abstractmethod
    def fail(self, error: TandemError) -> None:
        """Ends every open choice with this error."""

    def next_submit(self, *, alone: bool, on_cleared: Callable[[], None]) -> Any:
        """Starts the next attempt. Returns its submit message: the open choices, each with the tokens received.

        `alone`: tells the callee that this is a suspect. New tokens of each choice, as many as a trial takes, clear the
        strikes and call `on_cleared`.
        """
        self._on_trial, self._on_cleared = dict.fromkeys(self.open_choices, TRIALS[self._trial]), on_cleared
        self._began = {handle: len(choice.token_ids) for handle, choice in self.open_choices.items()}
        self._submit.attempt += 1
        self._submit.waited_ms = self._waited.ms()
        self._submit.alone, self._submit.trial_tokens = alone, TRIALS[self._trial] if alone else 0
        del self._submit.choices[:]
        for handle, choice in self.open_choices.items():
            self._submit.choices.append(
                pb.Choice(
                    handle=handle,
                    choice=choice.choice,
                    resumed_token_ids=bytes(choice.token_ids),
                    cached_tokens=choice.cached_tokens,
                    prompt_logprobs_from=choice.prompt_logprobs_from,
                )
            )
        return _copy(self._submit)

    def record_accepted(self, accepted: engine_pb2.Accepted | text_pb2.TextAccepted) -> bool:
        """Keeps seed, cached tokens and the message's RESOLVED_FIELDS, as far as they are set, for a resume.

        Returns True if this is the first acceptance of the choice. Raises KeyError if the choice is not open.
        """
        choice = self.open_choices[accepted.handle]
        repeat = choice.cached_tokens is not None
        if not repeat:
            choice.cached_tokens = accepted.cached_tokens
        self._submit.seed = accepted.seed
        names = RESOLVED_FIELDS[type(accepted)]
        resolved = {field.name: value for field, value in accepted.ListFields() if field.name in names}
        for name in resolved:
            self._submit.ClearField(name)
        self._submit.MergeFrom(type(self._submit)(**resolved))
        return not repeat

    def record_tokens(self, handle: int, start_index: int, token_ids: bytes) -> bytes:
        """Appends to the choice those of `token_ids` that it does not have, and returns them; both are columns of u32.

        `start_index`: output index of the first id. Raises StreamBroken if it is beyond the choice's next token,
        KeyError if the choice is not open.
        """
        known = self.open_choices[handle].token_ids
        skipped = len(known) - start_index * ITEM_BYTES
        if skipped < 0:
            raise StreamBroken(f"handle {handle}: expected token {len(known) // ITEM_BYTES}, received {start_index}")
        fresh = token_ids[skipped:]
        known += fresh
        if self._on_trial and fresh and handle in self._on_trial:  # mostly empty; this runs for every token
            self._on_trial[handle] -= len(fresh) // ITEM_BYTES
            if self._on_trial[handle] <= 0:
                self._end_trial(handle)
        return fresh

    def record_death(self) -> bool:
        """The callee has died. Returns True if that is a strike: the call was starting. Else the call may kill again
        behind some tokens, so its next trial is longer, unless it had as many tokens as the longest one."""
        if self.starting:
            self.strikes += 1
            return True
        new = min(len(one.token_ids) - self._began[handle] for handle, one in self.open_choices.items())
        self._trial = min(self._trial + 1, len(TRIALS) - 1) if new < TRIALS[-1] * ITEM_BYTES else 1
        return False

    def _end_trial(self, handle: int) -> None:
        del self._on_trial[handle]
        if not self._on_trial:
            self.strikes = 0
            self._on_cleared()

    def record_prompt_logprobs(self, scored: pb.PromptLogprobs) -> bool:
        """Counts logprobs of the prompt as received. Returns False if they were before.

        Raises StreamBroken for columns that contradict each other, for a gap, and if only a part of them is new;
        KeyError if the choice is not open.
        """
        size = len(scored.ranks) * scored.width
        if not size or len(scored.ranks) % ITEM_BYTES or not size == len(scored.token_ids) == len(scored.logprobs):
            raise StreamBroken("prompt_logprobs: not `width` entries for each token")
        choice, end = self.open_choices[scored.handle], scored.start_index + len(scored.ranks) // ITEM_BYTES
        if end <= choice.prompt_logprobs_from:
            return False
        if scored.start_index != choice.prompt_logprobs_from:
            expected = choice.prompt_logprobs_from
            raise StreamBroken(f"prompt_logprobs: expected token {expected}, received {scored.start_index} to {end}")
        choice.prompt_logprobs_from = end
        return True

    def end(self, handle: int) -> None:
        """Closes a choice, of which no more messages are expected. Raises KeyError if it is not open."""
        del self.open_choices[handle]
        if handle in self._on_trial:
            self._end_trial(handle)


def _copy(submit: SubmitT) -> SubmitT:
    """Returns a copy that a call may change: attempt, wait, seed and choices."""
    copy = type(submit)()
    copy.CopyFrom(submit)
    return copy
