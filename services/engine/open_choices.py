"""The table of open choices: for each request in the core, the stream and the handle under which a tokenizer sent it.

Routes a step's events into the mailboxes of their streams. When a choice ends, releases its place in the queue, its
attempt and the start lock, and records its metrics and spans. Used by the event loop's thread alone.
"""

from dataclasses import dataclass, field

from engine_core.events import Admitted, Finished, NewTokens, StepEvents
from services.engine.busy_loop import StepTimes
from services.engine.codec import prompt_logprobs, terminal
from services.engine.mailbox import ChoiceMailbox
from services.engine.state import EngineState
from services.engine.telemetry import Timeline, end_timeline
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.handles import Handles
from services.rpc.start_lock import CallerKey
from services.telemetry.spans import now


@dataclass
class Acceptance:
    """Whether an engine, this one or an earlier one, has accepted one of a request's choices; they share it. The others
    then wait through an outage as that one does: the client has begun to read the answer."""

    is_accepted: bool = False


@dataclass
class OpenChoice:
    """A choice that has not ended. `handle` is the tokenizer's, `mailbox` that of the tokenizer's stream."""

    mailbox: ChoiceMailbox
    handle: int
    key: CallerKey
    attempt: int
    seed: int
    num_prompt_tokens: int
    num_queued_tokens: int  # counted by the limit on queued tokens; 0 once it has its first token
    timeline: Timeline
    acceptance: Acceptance = field(default_factory=Acceptance)
    holds_place: bool = True  # in the queue
    sampling: pb.SamplingParams | None = None  # for the Accepted message; None: the submit does not ask for it


class OpenChoices:
    """The open choices of all streams, by the engine core's handles, which this class allocates."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._choices: dict[int, OpenChoice] = {}
        self._handles = Handles(self._choices)
        self._core_handles: dict[tuple[ChoiceMailbox, int], int] = {}  # of the newest attempt

    def new_handle(self) -> int:
        return self._handles.new()

    def add(self, core_handle: int, choice: OpenChoice) -> None:
        self._choices[core_handle] = choice
        self._core_handles[choice.mailbox, choice.handle] = core_handle
        self._state.queue.hold(choice.num_queued_tokens)

    def core_handle(self, mailbox: ChoiceMailbox, handle: int) -> int | None:
        """Returns the core's handle of the newest attempt of the stream's choice `handle`; None if it is not open."""
        return self._core_handles.get((mailbox, handle))

    def of_stream(self, mailbox: ChoiceMailbox) -> list[int]:
        """Returns the core's handles of all open choices of one stream."""
        return [core_handle for core_handle, choice in self._choices.items() if choice.mailbox is mailbox]

    def publish(self, events: StepEvents, times: StepTimes | None) -> None:
        """Puts events into their streams' mailboxes and closes finished choices.

        `times`: of the step with these events; None: they come from commands or a worker's registration.
        """
        done = times.done if times is not None else now()
        planned = times.planned if times is not None else done
        for admitted in events.admitted:
            if (choice := self._choices.get(admitted.handle)) is not None:
                choice.timeline.scheduled = planned
                choice.acceptance.is_accepted = True
                choice.mailbox.put_accepted(_accepted(choice, admitted, self._numerics_id()))
        for scored in events.prompt_logprobs:
            if (choice := self._choices.get(scored.handle)) is not None:
                choice.mailbox.put_prompt_logprobs(prompt_logprobs(choice.handle, scored))
        for tokens in events.new_tokens:
            if (choice := self._choices.get(tokens.handle)) is not None:
                self._put_tokens(choice, tokens)
                choice.timeline.record_tokens(planned, done)
        for finished in events.finished:
            if (choice := self._choices.pop(finished.handle, None)) is not None:
                self._end(choice, finished)
                self._record(choice, finished, done)

    def refuse_waiting(self, error: TandemError) -> None:
        """Ends the choices of requests that no engine has accepted with this error."""
        for core_handle, choice in self._choices.items():
            place = (choice.mailbox, choice.handle)
            if not choice.acceptance.is_accepted and self._core_handles.get(place) == core_handle:
                del self._core_handles[place]
                choice.mailbox.put_terminal(failed(choice.handle, error))
                self.abort(core_handle)

    def abort(self, core_handle: int) -> None:
        """Has the core abort a choice. Its place in the queue is free from now on: a newer attempt has its own."""
        if (choice := self._choices.get(core_handle)) is not None:
            self._release_place(choice)
        self._state.loop.abort(core_handle)

    def _numerics_id(self) -> str:
        assert self._state.facts is not None
        return self._state.facts.numerics_id

    def end_spans(self) -> None:
        """Ends the spans of all open choices with an error. Called when the process stops."""
        for choice in self._choices.values():
            choice.timeline.span.end(error="the engine stopped")

    def _put_tokens(self, choice: OpenChoice, tokens: NewTokens) -> None:
        choice.mailbox.put_tokens(choice.handle, tokens)
        if choice.num_queued_tokens:
            self._release_queued_tokens(choice)
            self._state.start_lock.on_start(choice.key)

    def _end(self, choice: OpenChoice, finished: Finished) -> None:
        state = self._state
        assert state.facts is not None
        self._release_place(choice)
        state.attempts.release(choice.key, choice.attempt)
        state.start_lock.on_start(choice.key)
        place = (choice.mailbox, choice.handle)
        if self._core_handles.get(place) == finished.handle:  # else a newer attempt on this stream has the handle
            del self._core_handles[place]
            choice.mailbox.put_terminal(terminal(choice.handle, finished, state.facts))

    def _record(self, choice: OpenChoice, finished: Finished, done: int) -> None:
        assert self._state.metrics is not None
        end_timeline(choice.timeline, self._state.tracing, finished, done)
        num_computed = finished.num_prompt_tokens - finished.num_cached_tokens
        self._state.metrics.record_end(choice.timeline.seconds(), finished.num_preemptions, num_computed)

    def _release_place(self, choice: OpenChoice) -> None:
        if choice.num_queued_tokens:
            self._release_queued_tokens(choice)
        if choice.holds_place:
            choice.holds_place = False
            self._state.queue.reqs.release(1)

    def _release_queued_tokens(self, choice: OpenChoice) -> None:
        self._state.queue.tokens.release(choice.num_queued_tokens)
        choice.num_queued_tokens = 0


def failed(handle: int, error: TandemError) -> engine_pb2.Terminal:
    """Returns the terminal message of a choice that ends with an error. `handle`: the tokenizer's."""
    return engine_pb2.Terminal(handle=handle, reason=pb.FINISH_REASON_ERROR, error=error.to_proto())


def _accepted(choice: OpenChoice, admitted: Admitted, numerics_id: str) -> engine_pb2.Accepted:
    return engine_pb2.Accepted(
        handle=choice.handle,
        seed=choice.seed,
        prompt_tokens=choice.num_prompt_tokens,
        cached_tokens=admitted.num_cached_tokens,
        sampling=choice.sampling,
        numerics_id=numerics_id,
    )
