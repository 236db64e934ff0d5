"""loadtest.serving.report: the exact numbers and tables of known results."""

import pytest

from loadtest.serving.report import peak_concurrency, remarks, summarize, table
from loadtest.serving.result import RequestResult


def answer(
    start: float,
    *chunk_times: float,
    usage: tuple[int, int] | None = (10, 4),
    requested: int = 4,
    end: float | None = None,
) -> RequestResult:
    return RequestResult(
        requested_input_len=9,
        requested_output_len=requested,
        start=start,
        end=chunk_times[-1] if end is None else end,
        chunk_times=list(chunk_times),
        prompt_tokens=usage[0] if usage else None,
        completion_tokens=usage[1] if usage else None,
    )


def failure(start: float, end: float, error: str = "HTTP 500: broken") -> RequestResult:
    return RequestResult(9, 4, start, end, error=error)


# TTFT 1 and 2 s; e2e 4 and 3 s; TPOT (4-1)/3 and (3-2)/3 s; gaps 1, 2 and 0.5, 0.5 s.
TWO = [answer(0.0, 1.0, 2.0, 4.0), answer(1.0, 3.0, 3.5, 4.0)]


def test_the_numbers_of_two_answers() -> None:
    numbers = summarize(TWO, 4.0)
    assert {name: value for name, value in numbers.items() if not name.endswith("_ms")} == {
        "duration": 4.0,
        "completed": 2,
        "failed": 0,
        "total_input_tokens": 20,
        "total_output_tokens": 8,
        "request_throughput": 0.5,
        "output_throughput": 2.0,
        "total_token_throughput": 7.0,
        "max_concurrent_requests": 2,
        "without_usage": 0,
        "other_output_len": 0,
        "failures": {},
    }
    latencies = {name: value for name, value in numbers.items() if name.endswith("_ms")}
    assert latencies == pytest.approx(
        {
            "mean_ttft_ms": 1500.0,
            "median_ttft_ms": 1500.0,
            "std_ttft_ms": 500.0,
            "p99_ttft_ms": 1990.0,
            "mean_tpot_ms": 2000 / 3,
            "median_tpot_ms": 2000 / 3,
            "std_tpot_ms": 1000 / 3,
            "p99_tpot_ms": 1000 - 0.01 * 2000 / 3,
            "mean_itl_ms": 1000.0,
            "median_itl_ms": 750.0,
            "std_itl_ms": 1000 * 0.375**0.5,
            "p99_itl_ms": 1970.0,
            "mean_e2el_ms": 3500.0,
            "median_e2el_ms": 3500.0,
            "std_e2el_ms": 500.0,
            "p99_e2el_ms": 3990.0,
        }
    )


def test_metrics_and_percentiles_can_be_chosen() -> None:
    numbers = summarize(TWO, 4.0, metrics=("e2el",), percentiles=(25, 99.9))
    chosen = {name: value for name, value in numbers.items() if name.endswith("_ms")}
    assert chosen == pytest.approx(
        {"mean_e2el_ms": 3500, "median_e2el_ms": 3500, "std_e2el_ms": 500, "p25_e2el_ms": 3250, "p99.9_e2el_ms": 3999}
    )


def test_failures_count_only_as_failures() -> None:
    numbers = summarize([*TWO, failure(0.0, 0.1), failure(0.0, 0.1), failure(3.0, 9.0, "cut")], 4.0)
    assert numbers["failures"] == {"HTTP 500: broken": 2, "cut": 1}
    counted = ("completed", "failed", "total_output_tokens", "mean_e2el_ms")
    assert [numbers[name] for name in counted] == [2, 3, 8, 3500.0]


def test_nothing_completed() -> None:
    numbers = summarize([failure(0.0, 0.1)], 1.0)
    assert (numbers["completed"], numbers["output_throughput"], numbers["mean_ttft_ms"]) == (0, 0.0, None)
    assert "Mean TTFT (ms):                          -" in table(numbers)


def test_without_usage_chunks_are_counted_and_reported() -> None:
    numbers = summarize([answer(0.0, 1.0, 2.0, 4.0, usage=None), TWO[0]], 4.0)
    assert (numbers["total_input_tokens"], numbers["total_output_tokens"]) == (9 + 10, 3 + 4)
    assert numbers["without_usage"] == 1
    (remark,) = remarks(numbers, exact_length=False)
    assert remark.startswith("The server sent no usage for 1 requests: each chunk counts as one output token")


def test_one_token_has_no_time_per_output_token() -> None:
    numbers = summarize([answer(0.0, 1.0, usage=(10, 1), requested=1)], 1.0)
    assert numbers["mean_tpot_ms"] is None
    assert numbers["mean_itl_ms"] is None
    assert numbers["mean_ttft_ms"] == 1000.0


def test_an_answer_without_visible_text_has_only_its_end() -> None:
    numbers = summarize([answer(0.0, end=2.0)], 2.0)
    assert (numbers["completed"], numbers["mean_ttft_ms"], numbers["mean_e2el_ms"]) == (1, None, 2000.0)


def test_answers_of_another_length_are_reported_if_the_length_is_exact() -> None:
    numbers = summarize([answer(0.0, 1.0, requested=5), TWO[0]], 4.0)
    assert remarks(numbers, exact_length=True) == ["1 answers do not have the requested length"]
    assert remarks(numbers, exact_length=False) == []


def test_remarks_name_the_most_frequent_reasons() -> None:
    failures = [failure(0.0, 1.0, f"reason {index}") for index in range(7) for _ in range(9 - index)]
    lines = remarks(summarize(failures, 1.0), exact_length=False)
    assert lines[0] == "Failed 9 times: reason 0"
    assert lines[4:] == ["Failed 5 times: reason 4", "Failed 7 times for other reasons"]


@pytest.mark.parametrize(
    ("spans", "peak"),
    [([], 0), ([(0, 1), (1, 2)], 1), ([(0, 3), (1, 2), (1, 4)], 3), ([(0, 1), (0.5, 2), (1.5, 3)], 2)],
)
def test_peak_concurrency(spans: list[tuple[float, float]], peak: int) -> None:
    assert peak_concurrency([failure(start, end) for start, end in spans]) == peak


def test_the_wait_share_has_a_line_only_if_it_is_known() -> None:
    assert "Accelerator wait share (%):              12.50" in table(summarize(TWO, 4.0, wait_share=0.125)).splitlines()
    assert "Accelerator" not in table(summarize(TWO, 4.0))


def test_the_table() -> None:
    numbers = summarize(TWO, 4.0, metrics=("ttft",), percentiles=(50, 99))
    assert table(numbers, title="Two", rate=2.5, limit=8).splitlines() == [
        "====================== Two =======================",
        "Successful requests:                     2",
        "Failed requests:                         0",
        "Maximum request concurrency:             8",
        "Request rate configured (RPS):           2.50",
        "Benchmark duration (s):                  4.00",
        "Total input tokens:                      20",
        "Total generated tokens:                  8",
        "Request throughput (req/s):              0.50",
        "Output token throughput (tok/s):         2.00",
        "Peak concurrent requests:                2",
        "Total token throughput (tok/s):          7.00",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          1500.00",
        "Median TTFT (ms):                        1500.00",
        "P50 TTFT (ms):                           1500.00",
        "P99 TTFT (ms):                           1990.00",
        "==================================================",
    ]
