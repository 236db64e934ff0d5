"""telemetry: the tool calls of finished choices, by model and format."""

from prometheus_client import CollectorRegistry

from services.telemetry.spans import NoTracing
from services.tokenizer.telemetry import TokenizerTelemetry


def test_calls_are_counted_by_choice_and_broken_ones_by_call() -> None:
    registry = CollectorRegistry()
    telemetry = TokenizerTelemetry(registry, NoTracing(), "hermes")
    assert registry.get_sample_value("tandem:tool_calls_broken_total", {"format": "hermes"}) == 0
    for num_calls, num_broken in ((0, 0), (3, 2), (1, 1)):
        telemetry.parsed("m", num_calls, num_broken)
    name = "vllm:tool_call_parser_invocations_total"
    counts = [
        registry.get_sample_value(name, {"model_name": "m", "outcome": outcome})
        for outcome in ("tool_call", "no_tool_call")
    ]
    assert counts == [2, 1]
    assert registry.get_sample_value("tandem:tool_calls_broken_total", {"format": "hermes"}) == 3


def test_without_a_format_no_broken_calls_are_counted() -> None:
    registry = CollectorRegistry()
    TokenizerTelemetry(registry, NoTracing())
    assert not any(
        sample.labels for family in registry.collect() for sample in family.samples if "broken" in sample.name
    )
