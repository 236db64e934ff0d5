"""ShimMetrics: every series exists from the start, with vLLM's names and labels."""

import pytest
from prometheus_client import CollectorRegistry

from services.rpc.finish_reasons import REASON_BY_NAME
from services.shim.metrics import COUNTERS, HISTOGRAMS, REJECTIONS, ShimMetrics

LABELS = {"model_name": "m", "engine": "0"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_the_series_of_a_model_exist_from_the_first_call(registry: CollectorRegistry) -> None:
    metrics = ShimMetrics(registry)
    assert registry.get_sample_value("vllm:generation_tokens_total", LABELS) is None
    metrics.of("m")
    for name in COUNTERS:
        assert registry.get_sample_value(f"vllm:{name}_total", LABELS) == 0
    for name in HISTOGRAMS:
        assert registry.get_sample_value(f"vllm:{name}_count", LABELS) == 0
    for reason in REASON_BY_NAME:
        labels = {**LABELS, "finished_reason": reason}
        assert registry.get_sample_value("vllm:request_success_total", labels) == 0


def test_one_object_per_model(registry: CollectorRegistry) -> None:
    metrics = ShimMetrics(registry)
    assert metrics.of("m") is metrics.of("m")
    metrics.of("m").generation_tokens.inc(3)
    metrics.of("other").generation_tokens.inc(4)
    assert registry.get_sample_value("vllm:generation_tokens_total", LABELS) == 3
    assert registry.get_sample_value("vllm:generation_tokens_total", {**LABELS, "model_name": "other"}) == 4


def test_rejections_exist_from_the_start(registry: CollectorRegistry) -> None:
    ShimMetrics(registry)
    for reason in REJECTIONS:
        assert registry.get_sample_value("tandem:http_rejections_total", {"reason": reason}) == 0


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_buckets_grow(name: str) -> None:
    buckets = HISTOGRAMS[name][1]
    assert list(buckets) == sorted(set(buckets)) and buckets[0] > 0


def test_each_value_is_in_a_histogram_of_its_own(registry: CollectorRegistry) -> None:
    """Each attribute observes another value, so that two attributes with one histogram would show."""
    series = ShimMetrics(registry).of("m")
    expected = {
        "time_to_first_token_seconds": series.first_token,
        "inter_token_latency_seconds": series.between_tokens,
        "request_time_per_output_token_seconds": series.per_output_token,
        "e2e_request_latency_seconds": series.latency,
        "request_prompt_tokens": series.request_prompt_tokens,
        "request_generation_tokens": series.request_generation_tokens,
        "request_params_n": series.params_n,
        "request_params_max_tokens": series.params_max_tokens,
    }
    assert expected.keys() == HISTOGRAMS.keys()
    for value, histogram in enumerate(expected.values(), 1):
        histogram.observe(value)
    for value, name in enumerate(expected, 1):
        assert registry.get_sample_value(f"vllm:{name}_sum", LABELS) == value
