"""loadtest.serving.comparison: medians, spread, ratios and marks of known rows."""

from typing import Any

from loadtest.serving.comparison import Spread, faults, markdown, summaries
from loadtest.serving.server import Command

TANDEM, OTHER, THIRD = Command("tandem", "a --port {port}"), Command("other", "b {port}"), Command("third", "c {port}")


def row(server: Command, speed: float, number: int = 1, workload: str = "c8", **more: Any) -> dict[str, Any]:
    numbers = {"output_throughput": speed, "total_token_throughput": 10 * speed, "mean_ttft_ms": 5.0}
    return {
        "round": number,
        "server": server.label,
        "workload": workload,
        "foreign_cpu": 0.01,
        "server_ended": None,
        **numbers,
        "mean_tpot_ms": 100 / speed,
        "failures": {},
        "other_output_len": 0,
        "without_usage": 0,
        **more,
    }


def table(*rows: dict[str, Any], servers: tuple[Command, ...] = (TANDEM, OTHER)) -> dict[tuple[str, str], list[str]]:
    """The cells after the first two, by them."""
    lines = [line for line in markdown(rows, servers, "one machine", "today").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {(one[0], one[1]): one[2:] for one in cells}


def test_medians_and_spread() -> None:
    rows = [row(TANDEM, speed, number) for number, speed in enumerate((30.0, 10.0, 22.0), 1)]
    (found,) = summaries(rows)
    assert found.speed == Spread(22.0, 10.0, 30.0)
    assert (found.runs, found.counted, found.disturbed) == (3, 3, False)


def test_ratios_are_of_medians_to_the_second_server() -> None:
    rows = [row(TANDEM, 10), row(TANDEM, 20), row(TANDEM, 60), row(OTHER, 40), row(OTHER, 40), row(THIRD, 10)]
    found = table(*rows, servers=(TANDEM, OTHER, THIRD))
    ratios = {server: [cells[1], cells[3], cells[5]] for (_, server), cells in found.items()}
    assert ratios == {
        "tandem": ["0.50", "1.00", "2.00"],
        "other": ["1.00", "1.00", "1.00"],
        "third": ["0.25", "1.00", "4.00"],
    }


def test_one_server_has_no_ratio() -> None:
    assert table(row(TANDEM, 10), servers=(TANDEM,))["c8", "tandem"][1] == "-"


def test_prefill_counts_input_tokens() -> None:
    assert table(row(TANDEM, 10, workload="prefill"))["prefill", "tandem"][0] == "100.0 (100.0 to 100.0)"


def test_an_invalid_run_does_not_count() -> None:
    rows = [row(TANDEM, 10), row(TANDEM, 99, 2, other_output_len=3), row(TANDEM, 99, 3, failures={"HTTP 500: no": 2})]
    assert table(*rows)["c8", "tandem"][0] == "10.0 (10.0 to 10.0)"
    assert table(*rows)["c8", "tandem"][6] == "1 of 3"
    text = markdown(rows, (TANDEM,), "one machine", "today")
    assert "- round 2, tandem, c8: 3 answers do not have the requested length\n" in text
    assert "- round 3, tandem, c8: 2 failed: HTTP 500: no\n" in text


def test_without_a_valid_run_there_are_no_numbers() -> None:
    found = table(row(TANDEM, 10, server_ended="by signal SIGKILL"), row(OTHER, 10))
    assert found["c8", "tandem"] == ["-", "-", "-", "-", "-", "-", "0 of 1", "0.0%"]


def test_why_a_run_is_invalid() -> None:
    assert faults(row(TANDEM, 10)) == []
    assert faults(row(TANDEM, 10, without_usage=4)) == ["4 answers have no usage"]
    assert faults(row(TANDEM, 10, server_ended="with status 1")) == ["the server ended with status 1"]


def test_a_disturbed_run_counts_only_without_an_undisturbed_one() -> None:
    rows = [row(TANDEM, 10), row(TANDEM, 50, 2, foreign_cpu=0.06), row(OTHER, 20, foreign_cpu=0.3)]
    found = table(*rows)
    assert [found["c8", "tandem"][place] for place in (0, 6, 7)] == ["10.0 (10.0 to 10.0)", "1 of 2", "1.0%"]
    assert [found["c8", "other"][place] for place in (0, 6, 7)] == ["20.0 (20.0 to 20.0)", "1 of 1†", "30.0%"]


def test_the_document_names_machine_servers_and_workloads() -> None:
    text = markdown([row(TANDEM, 10)], (TANDEM, OTHER), "AMD EPYC, 2 cores", "2026-11-21 18:00 UTC")
    for line in (
        "# tandem and other",
        "2026-11-21 18:00 UTC. AMD EPYC, 2 cores.",
        "- tandem: `a --port {port}`",
        "- other: `b {port}`",
        "- c8: 32 requests, concurrency 8, 256 tokens in, 64 out",
    ):
        assert f"{line}\n" in text
