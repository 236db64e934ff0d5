"""`tandem bench throughput`: numbers, concurrency, and refused command lines."""

import json
from pathlib import Path

import pytest

from tests.e2e.harness import Server, run_tandem
from tests.loadtest.serving.bench_process import wait_share_line
from tests.loadtest.serving.other_server import OtherServer

THROUGHPUT = ("throughput", "--input-len=16", "--output-len=8", "--num-prompts=6", "--num-warmups=2")


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


def test_an_answer_of_another_length_is_a_failure() -> None:
    with OtherServer(usage={"prompt_tokens": 16, "completion_tokens": 7}) as server:
        done = run_tandem("bench", *THROUGHPUT, f"--base-url={server.url}")
    assert done.returncode == 1
    assert "answers do not have the requested length" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("throughput --output-len=0", "throughput: error: argument --output-len: 0 must be from 1 to 2.14748e+09"),
    ],
)
def test_a_wrong_command_line_is_one_line(command: str, message: str) -> None:
    done = run_tandem("bench", *command.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr
