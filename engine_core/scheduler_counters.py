"""What the scheduler counts, and the stats made from it."""

from collections.abc import Sized
from dataclasses import dataclass

from engine_core.block_pool import BlockPool
from engine_core.events import SchedulerStats
from engine_core.waiting import WaitingQueue


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


def scheduler_stats(running: Sized, waiting: WaitingQueue, pool: BlockPool, counters: Counters) -> SchedulerStats:
    return SchedulerStats(
        num_running=len(running),
        num_waiting=len(waiting),
        waiting_tokens=waiting.num_tokens,
        num_free_blocks=pool.num_free_blocks,
        num_blocks=pool.num_blocks,
        num_steps=counters.steps,
        num_preemptions=counters.preemptions,
        prefix_cache_queries=counters.prefix_cache_queries,
        prefix_cache_hits=counters.prefix_cache_hits,
        num_chunked_rows=counters.chunked_rows,
        num_scheduled_tokens=counters.scheduled_tokens,
        num_steps_ahead=counters.steps_ahead,
        num_deferred=waiting.num_deferred,
        num_output_tokens=counters.output_tokens,
    )
