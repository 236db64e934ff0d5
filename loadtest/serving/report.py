"""Turns results into numbers, and numbers into a table. Pure. The numbers have the names of `vllm bench serve`.

Latencies are in milliseconds, throughputs per second of the whole run. Percentiles interpolate linearly, like numpy's.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from loadtest.serving.result import RequestResult

Numbers = dict[str, Any]

# name: (short name, headline)
METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
WAIT_SHARE = "accelerator_wait_share"
_WIDTH = 50
_MAX_REASONS = 5


def summarize(
    results: Sequence[RequestResult],
    duration: float,
    *,
    metrics: Sequence[str] = tuple(METRICS),
    percentiles: Sequence[float] = (99.0,),
    wait_share: float | None = None,
) -> Numbers:
    """Returns the numbers of one run of `duration` seconds. Failed requests count only in `failed`, `failures` and the
    peak concurrency.

    `metrics` are the names of the latencies to include. A latency that no request has is None (TPOT, if every answer
    has one token). The accelerator's wait share, from 0 to 1, is present only if the server reports it.
    """
    done = [result for result in results if result.error is None]
    failures = Counter(result.error for result in results if result.error is not None)
    total_input = sum(result.input_tokens for result in done)
    total_output = sum(result.output_tokens for result in done)
    numbers: Numbers = {
        "duration": duration,
        "completed": len(done),
        "failed": failures.total(),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "request_throughput": len(done) / duration,
        "output_throughput": total_output / duration,
        "total_token_throughput": (total_input + total_output) / duration,
        "max_concurrent_requests": peak_concurrency(results),
        # Not in vLLM: whether the numbers above can be trusted.
        "without_usage": sum(result.completion_tokens is None for result in done),
        "other_output_len": sum(result.output_tokens != result.requested_output_len for result in done),
        "failures": dict(failures.most_common(_MAX_REASONS)),
        **({} if wait_share is None else {WAIT_SHARE: wait_share}),
    }
    values: dict[str, Sequence[float | None]] = {
        "ttft": [result.ttft for result in done],
        "tpot": [result.tpot for result in done],
        "itl": [gap for result in done for gap in result.itls],
        "e2el": [result.latency for result in done],
    }
    for name in metrics:
        seconds = [value for value in values[name] if value is not None]
        numbers |= _statistics(name, [1000 * value for value in seconds], percentiles)
    return numbers


def _statistics(name: str, values: list[float], percentiles: Sequence[float]) -> Numbers:
    keys = [f"{word}_{name}_ms" for word in ("mean", "median", "std", *(f"p{point:g}" for point in percentiles))]
    if not values:
        return dict.fromkeys(keys)
    found = [np.mean(values), np.median(values), np.std(values), *np.percentile(values, percentiles)]
    return dict(zip(keys, map(float, found), strict=True))


def peak_concurrency(results: Sequence[RequestResult]) -> int:
    """Returns the highest number of concurrent requests. One that ends when another starts does not overlap it."""
    changes = sorted([(result.start, 1) for result in results] + [(result.end, -1) for result in results])
    running = peak = 0
    for _, change in changes:
        running += change
        peak = max(peak, running)
    return peak


def table(
    numbers: Numbers, *, title: str = "Serving Benchmark Result", rate: float | None = None, limit: int | None = None
) -> str:
    """Returns the table. `rate` and `limit`: the configured request rate (per second) and concurrency, if any."""
    lines = [
        f" {title} ".center(_WIDTH, "="),
        _row("Successful requests:", numbers["completed"]),
        _row("Failed requests:", numbers["failed"]),
        *([] if limit is None else [_row("Maximum request concurrency:", limit)]),
        *([] if rate is None else [_row("Request rate configured (RPS):", rate)]),
        _row("Benchmark duration (s):", numbers["duration"]),
        _row("Total input tokens:", numbers["total_input_tokens"]),
        _row("Total generated tokens:", numbers["total_output_tokens"]),
        _row("Request throughput (req/s):", numbers["request_throughput"]),
        _row("Output token throughput (tok/s):", numbers["output_throughput"]),
        _row("Peak concurrent requests:", numbers["max_concurrent_requests"]),
        _row("Total token throughput (tok/s):", numbers["total_token_throughput"]),
        *([_row("Accelerator wait share (%):", 100 * numbers[WAIT_SHARE])] if WAIT_SHARE in numbers else []),
    ]
    for name, (short, headline) in METRICS.items():
        keys = [key for key in numbers if key.endswith(f"_{name}_ms") and not key.startswith("std_")]
        if keys:
            lines.append(headline.center(_WIDTH, "-"))
        lines += [_row(f"{key.split('_')[0].capitalize()} {short} (ms):", numbers[key]) for key in keys]
    return "\n".join([*lines, "=" * _WIDTH])


def _row(label: str, value: float | None) -> str:
    shown = "-" if value is None else str(value) if isinstance(value, int) else f"{value:.2f}"
    return f"{label:<40} {shown}"


def remarks(numbers: Numbers, *, exact_length: bool) -> list[str]:
    """Returns the lines below the table. With `exact_length`, answers of another length get a line."""
    lines = [f"Failed {times} times: {reason}" for reason, times in numbers["failures"].items()]
    others = numbers["failed"] - sum(numbers["failures"].values())
    if others:
        lines.append(f"Failed {others} times for other reasons")
    if numbers["without_usage"]:
        lines.append(
            f"The server sent no usage for {numbers['without_usage']} requests: each chunk counts as one output token, "
            "and the input tokens are those sent"
        )
    if exact_length and numbers["other_output_len"]:
        lines.append(f"{numbers['other_output_len']} answers do not have the requested length")
    return lines


def faults(numbers: Numbers) -> list[str]:
    """Returns why a run is invalid, if all answers must have the requested length; [] if it is valid."""
    found = [f"{times} failed: {reason}" for reason, times in numbers["failures"].items()]
    if numbers["other_output_len"]:
        found.append(f"{numbers['other_output_len']} answers do not have the requested length")
    if numbers["without_usage"]:
        found.append(f"{numbers['without_usage']} answers have no usage")
    return found
