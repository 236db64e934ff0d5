"""The instant worker: prompts that name their stream, send times, the shared count, and a KV cache that is enough."""

from pathlib import Path

import numpy as np
import pytest

from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from engine_core.step_plan import SamplingParams
from loadtest.engine.simulated_worker import SimulatedWorker
from loadtest.transport.instant_worker import PROMPT_LEN, VOCAB_SIZE, SendTimes, facts, prompt_of, received_count


def test_a_prompt_names_its_stream() -> None:
    prompts = [tuple(prompt_of(stream)) for stream in range(5000)]
    assert len(set(prompts)) == 5000
    assert {len(prompt) for prompt in prompts} == {PROMPT_LEN}
    assert max(map(max, prompts)) < VOCAB_SIZE


@pytest.mark.parametrize(("num_streams", "num_tokens"), [(3, 5), (1, 40), (8, 16)])
def test_every_token_of_every_stream_has_a_send_time(num_streams: int, num_tokens: int) -> None:
    """In a scheduler with the advertised blocks. Streams arrive in reverse order, so slots are not stream numbers."""
    model = facts(num_streams, num_tokens)
    kv = KVCacheManager(model.num_blocks, model.block_size, (FULL,), False)
    scheduler = Scheduler(kv, PlanBuilder(1, 1), SchedulerConfig(num_streams, 64))
    for stream in reversed(range(num_streams)):
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0)
        scheduler.add(Request(stream, sampling, 0, 0, prompt_of(stream), PROMPT_LEN, b""))
    worker, times = SimulatedWorker(num_streams, np.arange(10, dtype=np.int32)), SendTimes(num_streams, num_tokens)
    moment = 0
    while (plan := scheduler.schedule()) is not None:
        moment += 1
        times.record(plan, moment)
        scheduler.update(worker.execute(plan))
    assert scheduler.counters.preemptions == 0
    assert times.num_sent == num_streams * num_tokens
    assert times.sent.tolist() == [list(range(1, num_tokens + 1))] * num_streams


def test_a_prompt_that_names_no_stream_has_no_times() -> None:
    model = facts(1, 3)
    kv = KVCacheManager(model.num_blocks, model.block_size, (FULL,), False)
    scheduler = Scheduler(kv, PlanBuilder(1, 1), SchedulerConfig(1, 64))
    scheduler.add(Request(0, SamplingParams(max_tokens=3, temperature=0.0), 0, 0, [5] * 20, 20, b""))
    times = SendTimes(1, 3)
    plan = scheduler.schedule()
    assert plan is not None
    times.record(plan, 7)
    assert times.num_sent == 0 and not times.sent.any()


def test_the_received_count_is_shared(tmp_path: Path) -> None:
    file = tmp_path / "count"
    np.zeros(1, dtype=np.int64).tofile(file)
    writer, reader = received_count(str(file)), received_count(str(file))
    writer[0] += 7
    assert reader[0] == 7
