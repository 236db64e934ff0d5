"""`tandem bench transport`: the real processes, a line for each load."""

import math

import pytest

from loadtest.transport.command import COLUMNS
from loadtest.transport.measurement import PER_REQUEST, PROCESSES
from tests.e2e.harness import run_tandem

NAMES = ("streams", "step_ms", "tokens_per_s", "per_chunk", "p50", "p99", "engine_tok", "tok_shim", *PROCESSES)
NAMES += tuple(f"{name}/req" for name in PER_REQUEST)


def rows(*args: str) -> list[dict[str, float]]:
    ended = run_tandem("bench", "transport", *args)
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    head, *lines = ended.stdout.splitlines()
    assert head.split() == " ".join(COLUMNS).split()
    values = [[float(cell.replace(",", "")) for cell in line.split()] for line in lines]
    return [dict(zip(NAMES, each, strict=True)) for each in values]


@pytest.mark.parametrize(
    "edges", [[], pytest.param(["--tcp"], marks=pytest.mark.long)], ids=["Unix sockets", "TLS and CURVE"]
)
def test_messages_per_step_do_not_grow_with_the_streams(edges: list[str]) -> None:
    few, many = rows("--num-streams", "2", "64", "--num-tokens=100", "--step-ms=10", "--num-requests=40", *edges)
    assert (few["streams"], many["streams"]) == (2, 64)
    for row in (few, many):
        assert row["step_ms"] == 10
        # One message per step if every process has a core. Otherwise the tokens of a step may need several messages,
        # or one message may have the tokens of several steps.
        assert 0 < row["engine_tok"] < 8 and 0 < row["tok_shim"] < 8
        assert 0 < row["p50"] <= row["p99"]
        assert row["tokens_per_s"] <= row["streams"] * 100 * 2, "the worker is faster than its pace"
        assert all(row[process] > 0 for process in PROCESSES)
        assert all(row[f"{process}/req"] > row[process] for process in PER_REQUEST), "a request costs more than a token"


@pytest.mark.long
def test_without_a_step_time_it_is_faster() -> None:
    (row,) = rows("--num-streams=4", "--num-tokens=2000", "--step-ms=0", "--num-requests=0")
    assert row["tokens_per_s"] > 4 * 20, "no faster than with a step of 50 ms"
    assert row["per_chunk"] >= 1
    assert all(math.isnan(row[f"{process}/req"]) for process in PER_REQUEST)


@pytest.mark.parametrize(
    "args", [["--num-streams", "0"], ["--step-ms=-1"], ["--step-ms=nan"], ["--num-requests=-1"], ["--nonsense"]]
)
def test_a_wrong_command_line_is_refused(args: list[str]) -> None:
    ended = run_tandem("bench", "transport", *args)
    assert ended.returncode == 2 and args[0].split("=")[0] in ended.stderr
