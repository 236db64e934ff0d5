"""`tandem bench latency`, `throughput` and `sweep`, against a server that runs and one that they start."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Server, run_tandem
from tests.loadtest.serving.other_server import OtherServer

SECONDS = 240.0  # a deadline for a busy machine, not an expectation
LATENCY = ("latency", "--input-len=16", "--output-len=8", "--batch-size=3", "--num-iters=4", "--num-iters-warmup=1")
THROUGHPUT = ("throughput", "--input-len=16", "--output-len=8", "--num-prompts=6", "--num-warmups=2")
SWEEP = ("sweep", "--num-prompts=6", "--random-input-len=16", "--random-output-len=8", "--num-warmups=1")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--dtype=float32") as server:
        yield server


def wait_share_line(found: dict[str, Any]) -> str:
    assert 0 < found["accelerator_wait_share"] < 1
    return f"Accelerator wait share (%): {100 * found['accelerator_wait_share']:.2f}"


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


def test_a_batch_is_sent_at_once_and_never_again() -> None:
    usage = {"prompt_tokens": 16, "completion_tokens": 8}
    with OtherServer(usage=usage, first=0.3) as server:
        done = run_tandem("bench", *LATENCY, f"--base-url={server.url}", "--model=other", "--api-key=any")
    assert done.returncode == 0, done.stderr
    assert (len(server.bodies), server.peak) == (5 * 3, 3)
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 5 * 3
    for body in server.bodies:
        assert (len(body["prompt"]), body["max_tokens"], body["ignore_eos"], body["model"]) == (16, 8, True, "other")


def test_throughput(server: Server, tmp_path: Path) -> None:
    done = run_tandem("bench", *THROUGHPUT, f"--base-url={server.url}", f"--output-json={tmp_path / 'result.json'}")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "result.json").read_text())
    assert (found["num_requests"], found["total_num_tokens"]) == (6, 6 * 24)
    assert found["requests_per_second"] == pytest.approx(6 / found["elapsed_time"])
    assert found["tokens_per_second"] == pytest.approx(3 * found["output_tokens_per_second"])
    requests, total, output = (
        f"{found[name]:.2f}" for name in ("requests_per_second", "tokens_per_second", "output_tokens_per_second")
    )
    assert done.stdout.splitlines() == [
        f"Throughput: {requests} requests/s, {total} total tokens/s, {output} output tokens/s",
        wait_share_line(found),
    ]


def test_throughput_keeps_its_concurrency() -> None:
    with OtherServer(usage={"prompt_tokens": 16, "completion_tokens": 8}) as server:
        done = run_tandem("bench", *THROUGHPUT, f"--base-url={server.url}", "--max-concurrency=2")
    assert done.returncode == 0, done.stderr
    assert (len(server.bodies), server.peak) == (8, 2)


@pytest.mark.parametrize("command", [LATENCY, THROUGHPUT, (*SWEEP, "--max-concurrency=2")], ids=lambda one: one[0])
def test_an_answer_of_another_length_is_a_failure(command: tuple[str, ...]) -> None:
    with OtherServer(usage={"prompt_tokens": 16, "completion_tokens": 7}) as server:
        done = run_tandem("bench", *command, f"--base-url={server.url}")
    assert done.returncode == 1
    assert "answers do not have the requested length" in done.stdout + done.stderr


def test_sweep_over_concurrencies(server: Server, tmp_path: Path) -> None:
    files = (f"--output-json={tmp_path / 'sweep.json'}", f"--plot={tmp_path / 'sweep.png'}")
    done = run_tandem("bench", *SWEEP, f"--base-url={server.url}", "--max-concurrency=1,3", *files)
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split()[:2] == ["concurrency", "req/s"]
    rows = json.loads((tmp_path / "sweep.json").read_text())
    assert [(row["concurrency"], row["max_concurrent_requests"], row["completed"]) for row in rows] == [
        (1, 1, 6),
        (3, 3, 6),
    ]
    for line, row in zip(lines, rows, strict=True):
        shown = [float(cell) for cell in line.split()]
        assert shown[:3] == [
            row["concurrency"],
            round(row["request_throughput"], 2),
            round(row["output_throughput"], 2),
        ]
        assert shown[4] == round(row["mean_ttft_ms"], 2)
        assert 0 < row["accelerator_wait_share"] < 1
        assert shown[-1] == round(100 * row["accelerator_wait_share"], 2)
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_sweep_over_request_rates(tmp_path: Path) -> None:
    with OtherServer(usage={"prompt_tokens": 16, "completion_tokens": 8}, first=0, gap=0) as server:
        done = run_tandem(
            "bench",
            *SWEEP,
            f"--base-url={server.url}",
            "--request-rate=10,100",
            f"--output-json={tmp_path / 'sweep.json'}",
        )
    assert done.returncode == 0, done.stderr
    slow, fast = json.loads((tmp_path / "sweep.json").read_text())
    assert (slow["request_rate"], fast["request_rate"]) == (10, 100)
    assert slow["duration"] > 3 * fast["duration"]


def test_a_server_is_started_with_the_options_after_the_dashes() -> None:
    done = run_tandem("bench", *THROUGHPUT, "--start-timeout=120", "demo", "--", "--max-model-len=32", seconds=SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Throughput: ")
    done = run_tandem("bench", *LATENCY, "--", "--max-model-len=20", seconds=SECONDS)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("tandem bench latency: error: a batch of 3: 3 failed: HTTP 400: ")
    done = run_tandem("bench", *LATENCY, "--", "--max-model-len=none", seconds=SECONDS)
    assert done.returncode == 1
    assert "tandem serve ended with status 2 before it was healthy; its last line: " in done.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("latency --batch-size=0", "latency: error: argument --batch-size: 0 must be at least 1"),
        ("latency --num-iters=x", "latency: error: argument --num-iters: 'x' is not a whole number"),
        ("latency --base-url=http://a demo", "latency: error: --base-url is for a running server: MODEL and options"),
        ("latency --base-url=http://a -- --dtype=bfloat16", "latency: error: --base-url is for a running server"),
        ("latency --model=x", "latency: error: --model is for a server at --base-url"),
        ("throughput --output-len=0", "throughput: error: argument --output-len: 0 must be from 1 to 2.14748e+09"),
        ("throughput --base-url=a", "throughput: error: --base-url: 'a' is not a URL such as http://127.0.0.1:8000"),
        ("sweep", "sweep: error: one of the arguments --max-concurrency --request-rate is required"),
        ("sweep --max-concurrency=1,0", "sweep: error: argument --max-concurrency: 0 must be at least 1"),
        ("sweep --max-concurrency=1 --request-rate=1", "not allowed with argument"),
        ("sweep --request-rate=0", "argument --request-rate: 0 must be more than 0 and at most 1e+06"),
        ("sweep --max-concurrency=1 --plot=x.doc", "sweep: error: --plot: x.doc must end in .svg or .png"),
        ("steer", "tandem bench: error: unknown command 'steer'; the commands are serve, latency, throughput, sweep,"),
    ],
)
def test_a_wrong_command_line_is_one_line(command: str, message: str) -> None:
    done = run_tandem("bench", *command.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr
