"""The engines' states as the loads of vLLM's GetLoads, one per data-parallel rank: engine 0 is rank 0."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from smg_grpc_proto import vllm_engine_pb2 as vllm

from services.rpc.errors import invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.version import VERSION

MIN_SECONDS = 0.5  # between two looks at a counter: a shorter time gives no rate


class Rate:
    """The rate of a counter between two looks at it, per second. The first look gives 0; a restart begins anew."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[float, int] | None = None  # time, count
        self._rate = 0.0

    def of(self, count: int) -> float:
        now = self._clock()
        if self._last is None or count < self._last[1]:
            self._last, self._rate = (now, count), 0.0
        elif now - self._last[0] >= MIN_SECONDS:
            self._rate = (count - self._last[1]) / (now - self._last[0])
            self._last = (now, count)
        return self._rate


class Loads:
    """Keeps a rate for each rank."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rates: list[Rate] = []

    def response(
        self, request: vllm.GetLoadsRequest, engines: Sequence[engine_pb2.EngineStats], facts: pb.EngineFacts
    ) -> vllm.GetLoadsResponse:
        """Returns the load of every rank, or of the one that the request names. `include` names sections; as with vLLM
        there is one, "core", and others are absent.

        Raises TandemError (INVALID_ARGUMENT) for a rank that is not there.
        """
        if request.HasField("dp_rank") and not 0 <= request.dp_rank < len(engines):
            raise invalid(f"dp_rank is {request.dp_rank}, but there are {len(engines)} ranks", "dp_rank")
        self._rates += [Rate(self._clock) for _ in range(len(engines) - len(self._rates))]
        loads = [_load(rank, stats, facts, self._rates[rank]) for rank, stats in enumerate(engines)]
        if request.HasField("dp_rank"):
            loads = [loads[request.dp_rank]]
        return vllm.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(), version=VERSION, dp_rank_count=len(engines), loads=loads
        )


def _load(rank: int, stats: engine_pb2.EngineStats, facts: pb.EngineFacts, rate: Rate) -> vllm.SchedulerLoad:
    used = stats.num_blocks - stats.num_free_blocks
    usage = used / stats.num_blocks if stats.num_blocks else 0.0
    hits = stats.prefix_cache_hits / stats.prefix_cache_queries if stats.prefix_cache_queries else 0.0
    return vllm.SchedulerLoad(
        dp_rank=rank,
        num_running_reqs=stats.num_running,
        num_waiting_reqs=stats.num_waiting,
        num_total_reqs=stats.num_running + stats.num_waiting,
        num_used_tokens=used * facts.block_size,
        max_total_num_tokens=stats.num_blocks * facts.block_size,
        token_usage=usage,
        gen_throughput=rate.of(stats.num_output_tokens),
        cache_hit_rate=hits,
        utilization=usage,
        max_running_requests=facts.limits.max_num_seqs,
        # Which of them the cache holds is known once a request runs: until then, the mean of the others.
        num_waiting_uncached_tokens=round(stats.waiting_tokens * (1 - hits)),
    )
