"""`tandem bench serve` as a process, against a server that is not tandem: workload, report, exit status."""

import os
import pty
import signal
import subprocess
import termios
from pathlib import Path

import pytest

from tests.addresses import HOST
from tests.e2e.harness import TANDEM, wait_for
from tests.loadtest.serving.bench_process import bench, bench_result
from tests.loadtest.serving.other_server import OtherServer

SMALL = ("--num-prompts=4", "--random-input-len=8", "--random-output-len=5")


def test_chunks_are_counted_where_usage_is_missing(tmp_path: Path) -> None:
    with OtherServer() as server:
        done = bench(f"--base-url={server.url}", *SMALL, "--save-result", f"--result-dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "Total generated tokens:                  20" in done.stdout
    assert "Total input tokens:                      32" in done.stdout
    assert "The server sent no usage for 4 requests" in done.stdout
    (saved,) = tmp_path.iterdir()
    assert saved.name.startswith("openai-infqps-model-1-")
    assert str(saved) in done.stderr


def test_the_seed_decides_the_requests() -> None:
    sent = []
    for seed in ("--seed=3", "--seed=3", "--seed=4"):
        with OtherServer(first=0, gap=0) as server:
            bench(f"--base-url={server.url}", *SMALL, "--max-concurrency=1", "--random-range-ratio=0.5", seed)
        sent.append([(body["prompt"], body["max_tokens"]) for body in server.bodies])
    assert sent[0] == sent[1] != sent[2]
    assert len({len(prompt) for prompt, _ in sent[0]}) > 1


def test_warm_up_requests_are_not_measured(tmp_path: Path) -> None:
    with OtherServer() as server:
        found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL, "--num-warmups=3", "--random-prefix-len=6")
    assert found["completed"] == 4
    prompts = [body["prompt"] for body in server.bodies]
    assert (len(prompts), len({tuple(prompt) for prompt in prompts})) == (7, 7)
    assert {len(prompt) for prompt in prompts} == {6 + 8}
    assert len({tuple(prompt[:6]) for prompt in prompts}) == 1


def test_metrics_and_percentiles(tmp_path: Path) -> None:
    chosen = ("--percentile-metrics=ttft,e2el", "--metric-percentiles=50,99.9")
    with OtherServer() as server:
        found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL, *chosen)
    words = ("mean", "median", "std", "p50", "p99.9")
    names = {name for name in found if name.endswith("_ms")}
    assert names == {f"{word}_{name}_ms" for word in words for name in ("ttft", "e2el")}


def test_ragged_50_runs_twice_and_compares(tmp_path: Path) -> None:
    with OtherServer(chunks=3, first=0.03, gap=0.01) as server:
        found = bench_result(tmp_path, f"--base-url={server.url}", "--workload=ragged-50")
    first, second = server.bodies[:50], server.bodies[50:]
    assert sorted(map(repr, first)) == sorted(map(repr, second))
    assert {len(body["prompt"]) for body in first} == {32}
    assert all(body["ignore_eos"] for body in first)
    serial = found["one_by_one"]
    assert (serial["max_concurrent_requests"], serial["completed"], found["completed"]) == (1, 50, 50)
    assert found["max_concurrent_requests"] > 10
    assert found["output_throughput_ratio"] == pytest.approx(found["output_throughput"] / serial["output_throughput"])
    assert found["output_throughput_ratio"] > 2
    assert (found["workload"], found["num_prompts"]) == ("ragged-50", 50)


def test_ragged_50_without_ignore_eos() -> None:
    with OtherServer(chunks=1, first=0, gap=0) as server:
        done = bench(f"--base-url={server.url}", "--workload=ragged-50", "--no-ignore-eos")
    assert done.returncode == 0, done.stderr
    assert "Output throughput ratio, all at once / one by one:" in done.stdout
    assert "requested length" not in done.stdout
    assert not any("ignore_eos" in body for body in server.bodies)


def test_answers_of_another_length_are_reported() -> None:
    with OtherServer(chunks=2) as server:
        done = bench(f"--base-url={server.url}", *SMALL, "--ignore-eos")
    assert "4 answers do not have the requested length" in done.stdout


def test_failures_are_counted_and_reported() -> None:
    with OtherServer(broken=3) as server:
        done = bench(f"--base-url={server.url}", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "Successful requests:                     1\nFailed requests:                         3" in done.stdout
    assert "Failed 3 times: HTTP 500: out of order" in done.stdout


@pytest.mark.parametrize(
    ("server", "flags", "line"),
    [
        (OtherServer(models=()), (), "lists no model: name one with --model"),
        (OtherServer(api_key="a key"), (), "answers HTTP 401: wrong key"),
        (OtherServer(broken=9), ("--num-warmups=1",), "the warm-up failed: HTTP 500: out of order"),
        (OtherServer(), ("--tokenizer=/no/such/directory",), "there is no model directory /no/such/directory"),
        (OtherServer(), ("--save-result", "--result-dir=/proc/none"), "--result-dir /proc/none: "),
    ],
    ids=["models", "key", "warm-up", "tokenizer", "folder"],
)
def test_a_run_that_cannot_start_fails_with_one_line(server: OtherServer, flags: tuple[str, ...], line: str) -> None:
    with server:
        done = bench(f"--base-url={server.url}", *SMALL, *flags)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert line in done.stderr


@pytest.mark.parametrize("model", [(), ("--model=any",)], ids=["unnamed", "named"])
def test_without_a_server_it_fails_with_one_line(model: tuple[str, ...]) -> None:
    with OtherServer() as gone:
        pass
    done = bench(f"--host={HOST}", f"--port={gone.port}", *model)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"no server answers at {gone.url}/v1/models" in done.stderr


def test_ctrl_c_cancels_all_requests() -> None:
    with OtherServer(ending="hold") as server:
        process = subprocess.Popen(
            [*TANDEM, "bench", "serve", f"--base-url={server.url}", *SMALL],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # As in a terminal. A background job of a shell, such as a test run, ignores SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            wait_for(lambda: server.running == 4, "four running requests", 60)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
            process.communicate()
    assert (process.returncode, out, err) == (130, "", "tandem bench serve: stopped before the end\n")


def test_a_terminal_gets_a_progress_bar() -> None:
    parent, child = pty.openpty()
    termios.tcsetwinsize(child, (24, 80))
    try:
        with OtherServer() as server:
            done = subprocess.run(
                [*TANDEM, "bench", "serve", f"--base-url={server.url}", *SMALL],
                stdout=subprocess.PIPE,
                stderr=child,
                timeout=60,
                check=True,
            )
        shown = os.read(parent, 65536).decode()
    finally:
        os.close(parent)
        os.close(child)
    assert "4/4" in shown
    assert b"4/4" not in done.stdout
