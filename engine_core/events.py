"""The events that the scheduler returns after a step. `handle` is the engine's number of a choice, not its caller's."""

from dataclasses import dataclass, field

import msgspec

from engine_core.request import Request, Stop
from engine_core.step_plan import PromptLogprobs


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request was admitted for the first time, by any engine. `num_cached_tokens` of its prompt were cached."""

    handle: int
    num_cached_tokens: int


class Logprobs(msgspec.Struct, frozen=True, gc=False):
    """Logprobs of new tokens, flat: `width` entries per token, the sampled token first, then the most likely ones, or
    the requested ones in their order.

    `values` are natural logarithms of probabilities.
    """

    width: int
    token_ids: list[int]
    values: list[float]


class NewTokens(msgspec.Struct, frozen=True, gc=False):
    """New output tokens of one request; the first is its output token `start_index`, counted from 0.

    A step makes one object per running request, so it must be cheap: the garbage collector skips it (`gc=False`).
    """

    handle: int
    start_index: int
    token_ids: list[int]
    logprobs: Logprobs | None

    def first(self, count: int) -> "NewTokens":
        """Returns the first `count` of these tokens, with their logprobs."""
        logprobs = self.logprobs
        if logprobs is not None:
            end = count * logprobs.width
            logprobs = Logprobs(logprobs.width, logprobs.token_ids[:end], logprobs.values[:end])
        return NewTokens(self.handle, self.start_index, self.token_ids[:count], logprobs)


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request, exactly one: why it ended, and its final counts."""

    handle: int
    stop: Stop
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int


def finished(request: Request, stop: Stop) -> Finished:
    """Returns the last event of `request`, which ended by `stop`."""
    return Finished(
        request.handle,
        stop,
        request.num_prompt_tokens,
        request.num_output_tokens,
        request.num_cached_tokens or 0,
        request.num_preemptions,
    )


@dataclass(slots=True)
class StepEvents:
    admitted: list[Admitted] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)  # come before the request's new tokens
    new_tokens: list[NewTokens] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler's current state (num_running to num_blocks, num_deferred), and counters since it was created."""

    num_running: int
    num_waiting: int
    waiting_tokens: int  # known tokens of the waiting requests
    num_free_blocks: int
    num_blocks: int
    num_steps: int
    num_preemptions: int
    prefix_cache_queries: int  # tokens
    prefix_cache_hits: int  # tokens
    num_chunked_rows: int  # rows of plans that sample nothing: more of their known tokens are left to compute
    num_scheduled_tokens: int
    num_steps_ahead: int  # plans made before the previous result was back
    num_deferred: int  # of num_waiting: those that wait for something to be prepared
    num_output_tokens: int
