"""What the scheduler counts, for SchedulerStats."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the scheduler was created; a restart of the worker does not reset them."""

    steps: int = 0  # plans made
    preemptions: int = 0
    prefix_cache_queries: int = 0  # tokens looked up in the prefix cache, once per request
    prefix_cache_hits: int = 0  # tokens found there
    chunked_rows: int = 0  # rows of plans that sample nothing: more of their known tokens are left to compute
    scheduled_tokens: int = 0
    steps_ahead: int = 0  # plans made before the previous result was back
    output_tokens: int = 0  # tokens generated
