import time

import pytest

from services.telemetry import spans

MILLISECOND = 1_000_000


@pytest.mark.parametrize("paused_at", range(1, 25))
def test_a_pause_between_two_readings_of_the_clocks_does_not_shift_spans(
    monkeypatch: pytest.MonkeyPatch, paused_at: int
) -> None:
    epoch, clock, calls = 1_700_000_000_000_000_000, 0, 0

    def read() -> int:
        nonlocal clock, calls
        calls += 1
        clock += 20 * MILLISECOND if calls == paused_at else 50
        return clock

    monkeypatch.setattr(time, "perf_counter_ns", read)
    monkeypatch.setattr(time, "time_ns", lambda: epoch + read())
    found = spans.monotonic_epoch()
    monkeypatch.undo()
    assert epoch <= found <= epoch + MILLISECOND


def test_now_is_the_systems_time() -> None:
    before, now, after = time.time_ns(), spans.now(), time.time_ns()
    assert before - 100 * MILLISECOND <= now <= after + 100 * MILLISECOND
