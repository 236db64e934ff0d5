"""One tokenizer's stream, or one program's call: its submits become requests of the core, its aborts end them.

Every limit is checked here, even if the shim and the tokenizer check it as well. A refused submit gets one terminal
message per choice; the stream goes on.
"""

import functools
import time
from collections.abc import Callable

from engine_core.refusal import RequestRefused
from engine_core.request import SUSPECT_AT, Request
from engine_core.request_check import make_request
from engine_core.suspects import LONGEST_TRIAL
from services.engine.codec import effective_sampling, new_choices
from services.engine.mailbox import ChoiceMailbox
from services.engine.open_choices import Acceptance, OpenChoice, OpenChoices, failed
from services.engine.queue_limits import QueueFull
from services.engine.state import EngineState
from services.engine.telemetry import start_timeline
from services.rpc.errors import CONTEXT_LENGTH_EXCEEDED, TandemError, invalid, other_numerics
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.start_lock import CallerKey

NS_PER_MS = 10**6
MAX_DRAWN_SEED = 2**53 - 1  # a client may send it back: APIs take at most 2**63 - 1, and JSON often means doubles


class Session:
    def __init__(self, state: EngineState, choices: OpenChoices, mailbox: ChoiceMailbox) -> None:
        self.mailbox = mailbox
        self._state = state
        self._choices = choices
        self._caller = pb.Hello()

    def opened(self, caller: pb.Hello) -> Callable[[engine_pb2.EngineEntry], None]:
        """Keeps the tokenizer's hello; returns the function that handles each entry."""
        self._caller = caller
        return self._receive

    def close(self) -> None:
        """Aborts every open choice of this stream."""
        for core_handle in self._choices.of_stream(self.mailbox):
            self._choices.abort(core_handle)

    def _receive(self, entry: engine_pb2.EngineEntry) -> None:
        if entry.HasField("submit"):
            self._receive_submit(entry.submit)
        elif entry.HasField("abort"):
            core_handle = self._choices.core_handle(self.mailbox, entry.abort.handle)
            if core_handle is not None:
                self._choices.abort(core_handle)  # the terminal message follows from the core's event
                self._state.start_lock.on_start(self._key(entry.abort.handle))

    def _receive_submit(self, submit: engine_pb2.Submit) -> None:
        try:
            self._submit(submit)
        except RequestRefused as refused:
            reason = CONTEXT_LENGTH_EXCEEDED if refused.exceeds_context else ""
            self._refuse(submit, invalid(str(refused), refused.param, reason))
        except TandemError as error:
            self._refuse(submit, error)
            if isinstance(error, QueueFull) and self._state.metrics is not None:
                self._state.metrics.record_rejection(error.option)
        except ValueError as error:
            self._refuse(submit, invalid(str(error)))

    def _submit(self, submit: engine_pb2.Submit) -> None:
        """Checks all choices, then passes each to the busy loop, unless an equal or newer attempt of it runs.

        Raises RequestRefused, TandemError when too many wait or no worker is expected, or ValueError for a malformed
        column of token ids.
        """
        state = self._state
        arrival = time.monotonic_ns() - submit.waited_ms * NS_PER_MS
        requests = self._checked_requests(submit)
        handles = (choice.handle for choice in submit.choices)
        acceptance = Acceptance(_is_accepted(submit))
        alone = submit.alone and state.start_lock.start_alone(self._caller, handles)
        for request, choice in zip(requests, submit.choices, strict=True):
            key = self._key(choice.handle)
            abort = functools.partial(self._choices.abort, request.handle)
            if not state.attempts.claim(key, submit.attempt, abort):
                state.dropped_attempts.log("dropped a submit: a newer attempt of its choice is running")
                state.start_lock.on_start(key)
                continue
            timeline = start_timeline(state.tracing, submit.traceparent)
            request.traceparent, request.arrival = timeline.span.traceparent, arrival
            if alone:
                request.strikes, request.trial = SUSPECT_AT, max(1, min(submit.trial_tokens, LONGEST_TRIAL))
                request.trial_end = request.num_output_tokens + request.trial
            self._choices.add(
                request.handle,
                OpenChoice(
                    mailbox=self.mailbox,
                    handle=choice.handle,
                    key=key,
                    attempt=submit.attempt,
                    seed=request.seed,
                    num_prompt_tokens=request.num_prompt_tokens,
                    num_queued_tokens=request.num_tokens,
                    timeline=timeline,
                    acceptance=acceptance,
                    sampling=effective_sampling(request.sampling) if submit.return_sampling else None,
                ),
            )
            state.loop.add(request)

    def _checked_requests(self, submit: engine_pb2.Submit) -> list[Request]:
        """Returns one request per choice. Raises as `_submit`; for a submit that an engine has accepted before, no
        TandemError but that of another numerics_id."""
        state = self._state
        assert state.facts is not None
        if not 1 <= len(submit.choices) <= state.max_n:
            raise RequestRefused("n", f"n is {len(submit.choices)}, but must be from 1 to {state.max_n}")
        if submit.priority and not state.by_priority:
            raise RequestRefused(
                "priority",
                f"priority is {submit.priority}, but this server schedules by arrival; see --scheduling-policy",
            )
        if submit.numerics_id and submit.numerics_id != state.facts.numerics_id:
            raise other_numerics(submit.numerics_id)
        seed = submit.seed if submit.HasField("seed") else state.seeds.randint(0, MAX_DRAWN_SEED)
        handles = [self._choices.new_handle() for _ in submit.choices]
        choices = new_choices(submit, state.facts, handles, seed)
        requests = [make_request(new, state.facts, state.root_key) for new in choices]
        if not _is_accepted(submit):
            state.outage.check()
            if submit.attempt <= 1:
                state.queue.check([request.num_tokens for request in requests])
        return requests

    def _refuse(self, submit: engine_pb2.Submit, error: TandemError) -> None:
        """Puts a terminal message with this error into the mailbox for each choice of the submit."""
        for choice in submit.choices:
            self.mailbox.put_terminal(failed(choice.handle, error))

    def _key(self, handle: int) -> CallerKey:
        return (self._caller.instance, self._caller.epoch, handle)


def _is_accepted(submit: engine_pb2.Submit) -> bool:
    """Returns whether an engine has accepted a choice of the request, in an earlier attempt: it may have ended."""
    begun = (choice.HasField("cached_tokens") or choice.resumed_token_ids for choice in submit.choices)
    return bool(submit.numerics_id) or any(begun)
