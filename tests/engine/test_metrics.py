"""The engine's metrics have vLLM's names, labels and units, as a scrape sees them."""

import dataclasses

import pytest
from prometheus_client import CollectorRegistry

from engine_core.events import SchedulerStats
from engine_core.kv_groups import FULL
from services.engine.metrics import COUNTERS, GAUGES, HISTOGRAMS, REJECTIONS, EngineMetrics
from tests.fakes import make_facts

LABELS = {"model_name": "fake", "engine": "0"}
START = SchedulerStats(
    num_running=0,
    num_waiting=0,
    waiting_tokens=0,
    num_free_blocks=64,
    num_blocks=64,
    num_steps=0,
    num_preemptions=0,
    prefix_cache_queries=0,
    prefix_cache_hits=0,
    num_chunked_rows=0,
    num_scheduled_tokens=0,
    num_steps_ahead=0,
    num_deferred=0,
    num_output_tokens=0,
)


class Scraped:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = EngineMetrics(self.registry, True, make_facts(num_blocks=64, block_size=4))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"vllm:{name}", {**LABELS, **labels})


@pytest.fixture
def scraped() -> Scraped:
    return Scraped()


def test_every_series_is_there_before_the_first_request(scraped: Scraped) -> None:
    names = [*GAUGES, *(f"{name}_total" for name in COUNTERS), *(f"{name}_count" for name in HISTOGRAMS)]
    assert {name: scraped.value(name) for name in names} == dict.fromkeys(names, 0)
    for reason in REJECTIONS:
        assert scraped.value("admission_rejections_total", reason=reason) == 0
    for reason in ("capacity", "deferred"):
        assert scraped.value("num_requests_waiting_by_reason", reason=reason) == 0


def test_the_cache_configuration_is_in_labels(scraped: Scraped) -> None:
    labels = {
        "block_size": "4", "num_gpu_blocks": "64", "enable_prefix_caching": "True", "engine": "0",
        "kv_cache_size_tokens": "256", "kv_cache_max_concurrency": "4.0",
    }  # fmt: skip
    assert scraped.registry.get_sample_value("vllm:cache_config_info", labels) == 1


@pytest.mark.parametrize(
    ("changes", "size", "concurrency"),
    [
        ({"max_model_len": 64}, "256", "4.0"),  # 64 blocks of 4 tokens, 16 for each request
        ({"max_model_len": 30}, "240", "8.0"),  # the last block of each is half empty
        ({"max_model_len": 256, "kv_groups": (FULL, FULL)}, "128", "0.5"),  # the groups share the blocks
    ],
)
def test_the_cache_holds_so_many_requests_of_the_full_length(
    changes: dict[str, object], size: str, concurrency: str
) -> None:
    registry = CollectorRegistry()
    EngineMetrics(registry, False, make_facts(num_blocks=64, block_size=4, **changes))  # type: ignore[arg-type]
    (metric,) = (one for one in registry.collect() if one.name == "vllm:cache_config_info")
    labels = metric.samples[0].labels
    assert (labels["kv_cache_size_tokens"], labels["kv_cache_max_concurrency"]) == (size, concurrency)


def test_the_cache_configuration_is_that_of_the_newest_worker(scraped: Scraped) -> None:
    scraped.metrics.record_kv_cache(make_facts(num_blocks=54, block_size=4))
    (metric,) = (one for one in scraped.registry.collect() if one.name == "vllm:cache_config_info")
    assert [sample.labels["num_gpu_blocks"] for sample in metric.samples] == ["54"]


def test_gauges_are_those_of_the_newest_state(scraped: Scraped) -> None:
    scraped.metrics.record_state(dataclasses.replace(START, num_running=5, num_waiting=9, num_free_blocks=0))
    scraped.metrics.record_state(dataclasses.replace(START, num_running=3, num_waiting=2, num_free_blocks=48))
    assert (scraped.value("num_requests_running"), scraped.value("num_requests_waiting")) == (3, 2)
    assert scraped.value("num_requests_waiting_by_reason", reason="capacity") == 2
    scraped.metrics.record_state(dataclasses.replace(START, num_waiting=5, num_deferred=3))
    assert scraped.value("num_requests_waiting") == 5
    assert scraped.value("num_requests_waiting_by_reason", reason="capacity") == 2
    assert scraped.value("num_requests_waiting_by_reason", reason="deferred") == 3
    scraped.metrics.record_state(dataclasses.replace(START, num_free_blocks=48))
    assert scraped.value("kv_cache_usage_perc") == 0.25


def test_counters_grow_by_what_the_scheduler_counted_since_the_last_state(scraped: Scraped) -> None:
    for queries, hits, preemptions in ((0, 0, 0), (100, 40, 1), (100, 40, 1), (130, 60, 4)):
        scraped.metrics.record_state(
            dataclasses.replace(
                START, prefix_cache_queries=queries, prefix_cache_hits=hits, num_preemptions=preemptions
            )
        )
    assert scraped.value("prefix_cache_queries_total") == 130
    assert scraped.value("prefix_cache_hits_total") == 60
    assert scraped.value("num_preemptions_total") == 4


def test_steps_and_rejections_are_counted(scraped: Scraped) -> None:
    for num_tokens in (1, 512):
        scraped.metrics.record_step(num_tokens)
    scraped.metrics.record_rejection("max_num_queued_tokens")
    assert (scraped.value("iteration_tokens_total_count"), scraped.value("iteration_tokens_total_sum")) == (2, 513)
    assert scraped.value("admission_rejections_total", reason="max_num_queued_tokens") == 1
    assert scraped.value("admission_rejections_total", reason="max_num_queued_reqs") == 0


def test_an_ended_choice_counts_in_the_stages_that_it_reached(scraped: Scraped) -> None:
    scraped.metrics.record_end({}, 0, 0)  # aborted while it was waiting
    scraped.metrics.record_end({"request_queue_time_seconds": 2.0, "request_inference_time_seconds": 1.0}, 1, 5)
    assert scraped.value("request_queue_time_seconds_count") == 1
    assert scraped.value("request_num_preemptions_count") == 0, "it has no first token"
    times = {
        "request_queue_time_seconds": 0.5,
        "request_prefill_time_seconds": 0.25,
        "request_decode_time_seconds": 4.0,
        "request_inference_time_seconds": 4.25,
    }
    scraped.metrics.record_end(times, 2, 30)
    assert scraped.value("request_queue_time_seconds_sum") == 2.5
    assert scraped.value("request_decode_time_seconds_bucket", le="5.0") == 1
    assert scraped.value("request_decode_time_seconds_bucket", le="2.5") == 0
    assert (scraped.value("request_num_preemptions_count"), scraped.value("request_num_preemptions_sum")) == (1, 2)
    assert scraped.value("request_prefill_kv_computed_tokens_sum") == 30
