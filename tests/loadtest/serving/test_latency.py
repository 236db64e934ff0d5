"""`tandem bench latency`: numbers, concurrency, and refused command lines."""

import json
from pathlib import Path

import pytest

from tests.e2e.harness import Server, run_tandem
from tests.loadtest.serving.bench_process import wait_share_line
from tests.loadtest.serving.other_server import OtherServer

LATENCY = ("latency", "--input-len=16", "--output-len=8", "--batch-size=3", "--num-iters=4", "--num-iters-warmup=1")


def test_latency(server: Server, tmp_path: Path) -> None:
    done = run_tandem(
        "bench", *LATENCY, f"--base-url={server.url}", f"--output-json={tmp_path / 'new' / 'latency.json'}"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "new" / "latency.json").read_text())
    assert len(found["latencies"]) == 4
    assert found["avg_latency"] == pytest.approx(sum(found["latencies"]) / 4)
    assert min(found["latencies"]) <= found["percentiles"]["50"] <= max(found["latencies"])
    lines = done.stdout.splitlines()
    assert lines[0] == f"Avg latency: {found['avg_latency']:.4f} seconds"
    assert [line.split("%")[0] for line in lines[1:-1]] == ["10", "25", "50", "75", "90", "99"]
    assert lines[-1] == wait_share_line(found)


def test_a_batch_is_concurrent_and_every_prompt_is_new() -> None:
    usage = {"prompt_tokens": 16, "completion_tokens": 8}
    with OtherServer(usage=usage, first=0.3) as server:
        done = run_tandem("bench", *LATENCY, f"--base-url={server.url}", "--model=other", "--api-key=any")
    assert done.returncode == 0, done.stderr
    assert (len(server.bodies), server.peak) == (5 * 3, 3)
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 5 * 3
    for body in server.bodies:
        assert (len(body["prompt"]), body["max_tokens"], body["ignore_eos"], body["model"]) == (16, 8, True, "other")


def test_an_answer_of_another_length_is_a_failure() -> None:
    with OtherServer(usage={"prompt_tokens": 16, "completion_tokens": 7}) as server:
        done = run_tandem("bench", *LATENCY, f"--base-url={server.url}")
    assert done.returncode == 1
    assert "answers do not have the requested length" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("latency --batch-size=0", "latency: error: argument --batch-size: 0 must be at least 1"),
        ("latency --num-iters=x", "latency: error: argument --num-iters: 'x' is not a whole number"),
    ],
)
def test_a_wrong_command_line_is_one_line(command: str, message: str) -> None:
    done = run_tandem("bench", *command.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr
