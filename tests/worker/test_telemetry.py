"""What the worker counts of its steps, and which steps become spans."""

import pytest
from prometheus_client import CollectorRegistry

from engine_core.step_plan import NewRequest, SamplingParams, StepPlan, pack_i32
from services.worker.telemetry import StepSpans, WorkerMetrics
from tests.telemetry.fake_tracing import FakeTracing

SECOND = 1_000_000_000


def plan(
    rows: list[tuple[int, int, int, int]],
    new: dict[int, str] | None = None,
    *,
    released: list[int] | None = None,
    was_runnable: bool = False,
) -> StepPlan:
    """`rows` are (slot, new tokens, computed tokens, sampled); `new` maps the slots of new requests to traceparents."""
    columns = [pack_i32([row[index] for row in rows]) for index in range(4)]
    requests = [
        NewRequest(100 + slot, slot, b"", b"", [b""], SamplingParams(max_tokens=1), 0, 0, traceparent)
        for slot, traceparent in (new or {}).items()
    ]
    return StepPlan(
        epoch=1, step_id=1, base_step_id=None, released_slots=released or [], new_requests=requests,
        slots=columns[0], num_new_tokens=columns[1], num_computed_tokens=columns[2], output_indices=columns[0],
        sampled=columns[3], block_offsets=[b""], block_ids=[b""], was_runnable=was_runnable,
    )  # fmt: skip


def test_the_gap_before_a_step_is_runnable_time_only_if_a_request_could_run() -> None:
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    metrics.step(plan([]), 10 * SECOND, 12 * SECOND, SECOND, SECOND // 2)
    metrics.step(plan([]), 20 * SECOND, 23 * SECOND, 2 * SECOND, SECOND)  # idle from 12 to 20
    metrics.step(plan([], was_runnable=True), 27 * SECOND, 28 * SECOND, SECOND, SECOND)  # runnable from 23 on
    counted = {
        name: registry.get_sample_value(f"tandem:worker_{name}_total")
        for name in ("steps", "step_seconds", "runnable_seconds", "kernel_seconds", "launch_seconds")
    }
    assert counted == pytest.approx(
        {
            "steps": 3,
            "step_seconds": 2 + 3 + 1,
            "runnable_seconds": 2 + 3 + 5,
            "kernel_seconds": 1 + 2 + 1,
            "launch_seconds": 0.5 + 1 + 1,
        }
    )


def test_each_chunk_of_a_traced_prompt_is_a_span_and_no_decode_step_is() -> None:
    tracing = FakeTracing()
    spans = StepSpans(tracing)
    spans.step(plan([(0, 4, 0, 0), (1, 3, 0, 1)], {0: "engine-span", 1: ""}), 1, 2)
    spans.step(plan([(0, 2, 4, 1), (1, 1, 3, 1)]), 3, 4)
    spans.step(plan([(0, 1, 6, 1), (1, 1, 4, 1)]), 5, 6)
    assert [(span.name, span.parent, span.at, span.ended) for span in tracing.spans] == [
        ("worker.prefill", "engine-span", 1, [(2, "")]),
        ("worker.prefill", "engine-span", 3, [(4, "")]),
    ]
    assert [span.attributes for span in tracing.spans] == [
        {"tandem.num_new_tokens": 4, "tandem.num_computed_tokens": 0},
        {"tandem.num_new_tokens": 2, "tandem.num_computed_tokens": 4},
    ]


def test_a_slot_that_an_untraced_request_gets_has_no_spans() -> None:
    tracing = FakeTracing()
    spans = StepSpans(tracing)
    spans.step(plan([(0, 4, 0, 0)], {0: "aborted"}), 1, 2)
    spans.step(plan([(0, 5, 0, 0)], {0: ""}, released=[0]), 3, 4)
    assert [span.parent for span in tracing.spans] == ["aborted"]
