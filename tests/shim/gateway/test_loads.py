"""The load of each rank from an engine's state, and rates from two looks at a counter."""

import pytest
from smg_grpc_proto import vllm_engine_pb2 as vllm

from services.rpc.errors import TandemError
from services.rpc.generated import engine_pb2
from services.shim.gateway.loads import MIN_SECONDS, Loads, Rate
from tests.shim.harness import FACTS

ALL = vllm.GetLoadsRequest()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_is_the_difference_over_the_time() -> None:
    clock = Clock()
    rate = Rate(clock)
    assert rate.of(1000) == 0, "nothing is known yet"
    clock.now += 2
    assert rate.of(1050) == 25
    clock.now += MIN_SECONDS / 2
    assert rate.of(1060) == 25, "too early for another rate"
    clock.now += 10
    assert rate.of(1050) == 0
    clock.now += 1
    assert rate.of(3) == 0, "the engine is a new one"
    clock.now += 1
    assert rate.of(10) == 7


def test_the_load_of_an_engine() -> None:
    clock = Clock()
    loads = Loads(clock)
    stats = engine_pb2.EngineStats(
        num_running=3, num_waiting=2, waiting_tokens=100, num_free_blocks=48, num_blocks=64,
        prefix_cache_queries=80, prefix_cache_hits=20, num_output_tokens=10,
    )  # fmt: skip
    loads.response(ALL, [stats], FACTS)
    clock.now += 1
    stats.num_output_tokens = 50
    answer = loads.response(ALL, [stats], FACTS)
    assert answer.dp_rank_count == 1 and answer.version and answer.timestamp
    assert answer.loads[0] == vllm.SchedulerLoad(
        dp_rank=0,
        num_running_reqs=3,
        num_waiting_reqs=2,
        num_total_reqs=5,
        num_used_tokens=16 * FACTS.block_size,
        max_total_num_tokens=64 * FACTS.block_size,
        token_usage=0.25,
        utilization=0.25,
        gen_throughput=40,
        cache_hit_rate=0.25,
        max_running_requests=8,
        num_waiting_uncached_tokens=75,
    )


def test_an_engine_that_has_done_nothing() -> None:
    (load,) = Loads().response(ALL, [engine_pb2.EngineStats()], FACTS).loads
    assert load == vllm.SchedulerLoad(max_running_requests=8)


def test_each_rank_has_a_rate_of_its_own() -> None:
    clock = Clock()
    loads = Loads(clock)
    for count in (0, 30):
        engines = [engine_pb2.EngineStats(num_output_tokens=rank * count) for rank in range(3)]
        answer = loads.response(ALL, engines, FACTS)
        clock.now += 1
    assert [(load.dp_rank, load.gen_throughput) for load in answer.loads] == [(0, 0), (1, 30), (2, 60)]


def test_one_rank_of_two() -> None:
    engines = [engine_pb2.EngineStats(num_running=rank) for rank in range(2)]
    answer = Loads().response(vllm.GetLoadsRequest(dp_rank=1, include=["core", "queues"]), engines, FACTS)
    assert answer.dp_rank_count == 2
    assert [(load.dp_rank, load.num_running_reqs) for load in answer.loads] == [(1, 1)]


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_is_not_there(rank: int) -> None:
    engines = [engine_pb2.EngineStats()] * 2
    with pytest.raises(TandemError, match=f"dp_rank is {rank}, but there are 2 ranks") as caught:
        Loads().response(vllm.GetLoadsRequest(dp_rank=rank), engines, FACTS)
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "dp_rank")


def test_an_engine_that_is_gone_keeps_its_rank() -> None:
    loads = Loads(Clock())
    engines = [engine_pb2.EngineStats(), engine_pb2.EngineStats(num_blocks=64, num_running=1)]
    answer = loads.response(ALL, engines, FACTS)
    assert [(one.dp_rank, one.num_running_reqs, one.max_total_num_tokens > 0) for one in answer.loads] == [
        (0, 0, False),
        (1, 1, True),
    ]
