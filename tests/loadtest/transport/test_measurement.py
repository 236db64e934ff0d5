"""The numbers of a transport measurement, from known samples and time stamps; test_command.py has real runs."""

import numpy as np
import pytest

from loadtest.transport.measurement import (
    PROCESSES,
    SHIM_MESSAGES,
    STEPS,
    TOKENIZER_MESSAGES,
    Sample,
    evaluate,
)
from services.errors import Fatal

MS = 1_000_000  # ns
PER_REQUEST = {"shim": 5.0}


def sample(moment: int, cpu: float, steps: int, to_tokenizer: int, to_shim: int) -> Sample:
    counters = {STEPS: float(steps), TOKENIZER_MESSAGES: float(to_tokenizer), SHIM_MESSAGES: float(to_shim)}
    return Sample(moment, dict.fromkeys(PROCESSES, cpu), counters)


def test_only_tokens_of_the_interval_count() -> None:
    """Three of six tokens arrive within 10 to 20 ms; chunks are counted over the whole run."""
    first, last = sample(10 * MS, 1.0, 5, 5, 5), sample(20 * MS, 1.000006, 7, 9, 11)
    received = np.array([[9, 10, 15], [12, 20, 25]]) * MS
    sent = received - np.array([[1, 2, 4], [3, 1, 1]]) * MS
    found = evaluate((first, last), sent, received, np.array([1, 3]), PER_REQUEST)
    assert found.tokens_per_second == pytest.approx(3 / 0.010)
    assert sorted(found.latencies.tolist()) == pytest.approx([2.0, 3.0, 4.0])
    assert found.tokens_per_chunk == 6 / 4
    assert found.messages_per_step == (2.0, 3.0)
    assert found.cpu_us_per_token == pytest.approx(dict.fromkeys(PROCESSES, 2.0))
    assert found.cpu_us_per_request == PER_REQUEST


@pytest.mark.parametrize("steps", [0, 3])
def test_an_interval_without_tokens_or_steps_is_an_error(steps: int) -> None:
    first, last = sample(20, 0.0, 7, 7, 7), sample(30, 0.0, 7 + steps, 7, 7)
    times = np.array([[3, 10], [4, 25 if steps == 0 else 12]])
    with pytest.raises(Fatal, match="raise --num-tokens"):
        evaluate((first, last), times, times, np.array([2, 2]), PER_REQUEST)
