"""What the scheduler tells of its requests after a step. Handles are the core's own."""

from dataclasses import dataclass, field

import msgspec

from engine_core.request import Stop


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request runs for the first time."""

    handle: int
    num_cached_tokens: int


class Logprobs(msgspec.Struct, frozen=True, gc=False):
    """`width` entries per token: the sampled token first, then the top ones; natural logarithm."""

    width: int
    token_ids: list[int]
    values: list[float]


class NewTokens(msgspec.Struct, frozen=True, gc=False):
    """One for each running request and step: making it must cost next to nothing, and it can be in no cycle."""

    handle: int
    start_index: int
    token_ids: list[int]
    logprobs: Logprobs | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request; there is exactly one."""

    handle: int
    stop: Stop
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int


@dataclass(slots=True)
class StepEvents:
    admitted: list[Admitted] = field(default_factory=list)
    new_tokens: list[NewTokens] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The state now, and counters since the start."""

    num_running: int
    num_waiting: int
    waiting_tokens: int
    num_free_blocks: int
    num_blocks: int
    num_steps: int
    num_preemptions: int
    prefix_cache_queries: int  # tokens
    prefix_cache_hits: int  # tokens
    num_chunked_rows: int
    num_scheduled_tokens: int
    num_steps_ahead: int
