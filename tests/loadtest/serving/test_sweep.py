"""`tandem bench sweep`: one row for each concurrency or request rate, and refused command lines."""

import json
from pathlib import Path

import pytest

from tests.e2e.harness import Server, run_tandem
from tests.loadtest.serving.other_server import OtherServer

SWEEP = ("sweep", "--num-prompts=6", "--random-input-len=16", "--random-output-len=8", "--num-warmups=1")


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


def test_an_answer_of_another_length_is_a_failure() -> None:
    with OtherServer(usage={"prompt_tokens": 16, "completion_tokens": 7}) as server:
        done = run_tandem("bench", *SWEEP, "--max-concurrency=2", f"--base-url={server.url}")
    assert done.returncode == 1
    assert "answers do not have the requested length" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sweep", "sweep: error: one of the arguments --max-concurrency --request-rate is required"),
        ("sweep --max-concurrency=1,0", "sweep: error: argument --max-concurrency: 0 must be at least 1"),
        ("sweep --max-concurrency=1 --request-rate=1", "not allowed with argument"),
        ("sweep --request-rate=0", "argument --request-rate: 0 must be more than 0 and at most 1e+06"),
        ("sweep --max-concurrency=1 --plot=x.doc", "sweep: error: --plot: x.doc must end in .svg or .png"),
    ],
)
def test_a_wrong_command_line_is_one_line(command: str, message: str) -> None:
    done = run_tandem("bench", *command.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr
