"""`tandem bench transport`: the real processes, a line for each load, and what its numbers rest on."""

import numpy as np
import pytest

from loadtest.transport.command import COLUMNS
from loadtest.transport.measurement import PROCESSES, SHIM_MESSAGES, STEPS, TOKENIZER_MESSAGES, Sample, evaluate
from loadtest.transport.stream_client import arrivals
from services.errors import Fatal
from tests.e2e.harness import run_tandem

NAMES = ("streams", "step_ms", "tokens_per_s", "per_chunk", "p50", "p99", "engine_tok", "tok_shim", *PROCESSES)


def rows(*args: str) -> list[dict[str, float]]:
    ended = run_tandem("bench", "transport", *args)
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    head, *lines = ended.stdout.splitlines()
    assert head.split() == " ".join(COLUMNS).split()
    values = [[float(cell.replace(",", "")) for cell in line.split()] for line in lines]
    return [dict(zip(NAMES, each, strict=True)) for each in values]


@pytest.mark.parametrize("edges", [[], ["--tcp"]], ids=["Unix sockets", "TLS and CURVE"])
def test_messages_per_step_do_not_grow_with_the_streams(edges: list[str]) -> None:
    few, many = rows("--num-streams", "2", "64", "--num-tokens=100", "--step-ms=10", *edges)
    assert (few["streams"], many["streams"]) == (2, 64)
    for row in (few, many):
        assert row["step_ms"] == 10
        # One each where every process has a core; where not, a step's tokens may go up in several parts, or several
        # steps' together.
        assert 0 < row["engine_tok"] < 8 and 0 < row["tok_shim"] < 8
        assert 0 < row["p50"] <= row["p99"]
        assert row["tokens_per_s"] <= row["streams"] * 100 * 2, "the worker keeps its pace, whatever waits in queues"
        assert all(row[process] > 0 for process in PROCESSES)


def test_without_a_pace_it_goes_faster() -> None:
    (row,) = rows("--num-streams=4", "--num-tokens=2000", "--step-ms=0")
    assert row["tokens_per_s"] > 4 * 20, "more than a step of 50 ms would allow"
    assert row["per_chunk"] >= 1


def test_streams_that_are_over_too_soon_are_told() -> None:
    counters = dict.fromkeys((STEPS, TOKENIZER_MESSAGES, SHIM_MESSAGES), 7.0)
    first, last = (Sample(moment, dict.fromkeys(PROCESSES, 0.0), counters) for moment in (20, 30))
    times = np.array([[3, 10], [4, 12]])
    with pytest.raises(Fatal, match="raise --num-tokens"):
        evaluate((first, last), times, times, np.array([2, 2]))


def chunk(text: str) -> bytes:
    return f'10\r\ndata: {{"choices":[{{"index":0,"text":"{text}","logprobs":null}}]}}\n\n\r\n'.encode()


def test_a_token_came_when_its_chunk_was_whole() -> None:
    whole = chunk("y") + chunk("za")
    cut = len(chunk("y")) + 30  # within the second chunk, before its text
    found, num_chunks = arrivals([b"HTTP/1.1 200 OK\r\n\r\n", whole[:cut], whole[cut:]], [1, 2, 3])
    assert (found.tolist(), num_chunks) == ([2, 3, 3], 2)


@pytest.mark.parametrize("text", ["abd", "abbc", "acb"], ids=["lost", "repeated", "swapped"])
def test_a_token_in_the_wrong_place_is_noticed(text: str) -> None:
    with pytest.raises(ValueError, match="lost, repeated or swapped"):
        arrivals([chunk(text)], [1])


@pytest.mark.parametrize("args", [["--num-streams", "0"], ["--step-ms=-1"], ["--step-ms=nan"], ["--nonsense"]])
def test_a_wrong_command_line_is_refused(args: list[str]) -> None:
    ended = run_tandem("bench", "transport", *args)
    assert ended.returncode == 2 and args[0].split("=")[0] in ended.stderr
