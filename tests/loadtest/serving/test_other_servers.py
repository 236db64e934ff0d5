"""Against a server that is not tandem: known chunks at known times, with and without usage, and what may go wrong."""

import os
import pty
import signal
import subprocess
import termios
from pathlib import Path

import pytest

import demo
from loadtest.serving.workloads import arrival_times
from tests.addresses import HOST
from tests.e2e.harness import TANDEM, wait_for
from tests.loadtest.serving.command import bench, bench_result
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


def test_latencies_are_those_of_the_server(tmp_path: Path) -> None:
    with OtherServer(chunks=5, first=0.2, gap=0.1) as server:
        found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL)
    assert 200 <= found["mean_ttft_ms"] < 600
    assert 600 <= found["mean_e2el_ms"] < 1500
    assert 80 <= found["median_itl_ms"] < 200
    assert 80 <= found["median_tpot_ms"] < 200
    assert found["duration"] >= 0.6


def test_usage_wins_over_chunks(tmp_path: Path) -> None:
    with OtherServer(usage={"prompt_tokens": 11, "completion_tokens": 15}) as server:
        found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL)
    assert (found["total_input_tokens"], found["total_output_tokens"], found["without_usage"]) == (44, 60, 0)


def test_a_completion_asks_for_what_the_flags_say() -> None:
    flags = ("--temperature=0.5", "--ignore-eos", "--model=named", "--random-first-id=7", "--random-last-id=9")
    with OtherServer() as server:
        done = bench(f"--host={HOST}", f"--port={server.port}", *SMALL, *flags)
    assert done.returncode == 0, done.stderr
    assert server.paths == ["/v1/completions"] * 4
    for body in server.bodies:
        prompt = body.pop("prompt")
        assert (len(prompt), set(prompt) <= {7, 8}) == (8, True)
        assert body == {
            "model": "named",
            "max_tokens": 5,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "ignore_eos": True,
        }


def test_a_chat_asks_for_nothing_that_no_flag_says() -> None:
    chat = ("--endpoint=/v1/chat/completions", f"--tokenizer={demo.CHECKPOINT}")
    with OtherServer() as server:
        done = bench(f"--base-url={server.url}/v1/", *SMALL, *chat)
    assert done.returncode == 0, done.stderr
    assert "Total generated tokens:                  20" in done.stdout  # not the chunk with the role
    assert server.paths == ["/v1/chat/completions"] * 4
    assert server.bodies[0].keys() == {"model", "messages", "max_tokens", "stream", "stream_options"}
    assert server.bodies[0]["model"] == "other/model-1"
    assert [message["role"] for message in server.bodies[0]["messages"]] == ["user"]


def test_the_seed_decides_what_is_sent() -> None:
    sent = []
    for seed in ("--seed=3", "--seed=3", "--seed=4"):
        with OtherServer(first=0, gap=0) as server:
            bench(f"--base-url={server.url}", *SMALL, "--max-concurrency=1", "--random-range-ratio=0.5", seed)
        sent.append([(body["prompt"], body["max_tokens"]) for body in server.bodies])
    assert sent[0] == sent[1] != sent[2]
    assert len({len(prompt) for prompt, _ in sent[0]}) > 1


def test_warm_ups_go_ahead_and_do_not_count(tmp_path: Path) -> None:
    with OtherServer() as server:
        found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL, "--num-warmups=3", "--random-prefix-len=6")
    assert found["completed"] == 4
    prompts = [body["prompt"] for body in server.bodies]
    assert (len(prompts), len({tuple(prompt) for prompt in prompts})) == (7, 7)
    assert {len(prompt) for prompt in prompts} == {6 + 8}
    assert len({tuple(prompt[:6]) for prompt in prompts}) == 1


@pytest.mark.parametrize("limit", [1, 3])
def test_max_concurrency_is_kept(tmp_path: Path, limit: int) -> None:
    more = ("--num-prompts=12", f"--max-concurrency={limit}")
    with OtherServer() as server:
        found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL, *more)
    assert found["max_concurrent_requests"] == limit
    assert server.peak == limit
    assert found["max_concurrency"] == limit


def test_the_request_rate_spreads_the_requests(tmp_path: Path) -> None:
    with OtherServer(first=0, gap=0) as server:
        found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL, "--request-rate=5", "--seed=1")
    assert found["request_rate"] == 5.0
    last = arrival_times(4, 5.0, seed=1)[-1]
    assert last > 0.2
    assert found["duration"] > last - 0.01  # a timer may fire a little early


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
    alone = found["one_by_one"]
    assert (alone["max_concurrent_requests"], alone["completed"], found["completed"]) == (1, 50, 50)
    assert found["max_concurrent_requests"] > 10
    assert found["output_throughput_ratio"] == pytest.approx(found["output_throughput"] / alone["output_throughput"])
    assert found["output_throughput_ratio"] > 2
    assert (found["workload"], found["num_prompts"]) == ("ragged-50", 50)


def test_ragged_50_can_do_without_ignore_eos() -> None:
    with OtherServer(chunks=1, first=0, gap=0) as server:
        done = bench(f"--base-url={server.url}", "--workload=ragged-50", "--no-ignore-eos")
    assert done.returncode == 0, done.stderr
    assert "Output throughput, all at once to one by one:" in done.stdout
    assert "requested length" not in done.stdout
    assert not any("ignore_eos" in body for body in server.bodies)


def test_another_length_than_asked_is_told() -> None:
    with OtherServer(chunks=2) as server:
        done = bench(f"--base-url={server.url}", *SMALL, "--ignore-eos")
    assert "4 answers do not have the requested length" in done.stdout


@pytest.mark.parametrize("by_flag", [True, False], ids=["flag", "environment"])
def test_the_key(by_flag: bool) -> None:
    flags = ["--api-key=a key"] if by_flag else []
    with OtherServer(api_key="a key") as server:
        done = bench(f"--base-url={server.url}", *SMALL, *flags, env={} if by_flag else {"OPENAI_API_KEY": "a key"})
    assert done.returncode == 0, done.stderr


def test_failures_are_counted_and_told() -> None:
    with OtherServer(broken=3) as server:
        done = bench(f"--base-url={server.url}", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "Successful requests:                     1\nFailed requests:                         3" in done.stdout
    assert "Failed 3 times: HTTP 500: out of order" in done.stdout


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (OtherServer(broken=99), "HTTP 500: out of order"),
        (OtherServer(ending="cut"), "the stream ended before the answer was complete"),
        (OtherServer(ending="error"), "the stream has an error: lost my mind"),
        (OtherServer(ending='{"choices": [7]}'), "an event is not an OpenAI chunk: {'choices': [7]}"),
        (OtherServer(ending="[1, 2"), "an event is not JSON: [1, 2"),
    ],
    ids=["500", "cut", "error", "shape", "json"],
)
def test_nothing_completed_is_a_failure(server: OtherServer, reason: str) -> None:
    with server:
        done = bench(f"--base-url={server.url}", *SMALL)
    assert done.returncode == 1
    assert f"Failed 4 times: {reason}" in done.stdout


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
def test_what_cannot_begin_is_one_line(server: OtherServer, flags: tuple[str, ...], line: str) -> None:
    with server:
        done = bench(f"--base-url={server.url}", *SMALL, *flags)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert line in done.stderr


@pytest.mark.parametrize("model", [(), ("--model=any",)], ids=["unnamed", "named"])
def test_a_server_that_is_not_there_is_one_line(model: tuple[str, ...]) -> None:
    with OtherServer() as gone:
        pass
    done = bench(f"--host={HOST}", f"--port={gone.port}", *model)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"no server answers at {gone.url}/v1/models" in done.stderr


def test_ctrl_c_ends_it_and_its_requests() -> None:
    with OtherServer(ending="hold") as server:
        process = subprocess.Popen(
            [*TANDEM, "bench", "serve", f"--base-url={server.url}", *SMALL],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # As in a terminal; a shell's background job, and so a test run in one, would have it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            wait_for(lambda: server.running == 4, "four requests under way", 60)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
            process.communicate()
    assert (process.returncode, out, err) == (130, "", "tandem bench serve: stopped before the end\n")


def test_a_terminal_gets_a_progress_bar() -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    try:
        with OtherServer() as server:
            done = subprocess.run(
                [*TANDEM, "bench", "serve", f"--base-url={server.url}", *SMALL],
                stdout=subprocess.PIPE,
                stderr=theirs,
                timeout=60,
                check=True,
            )
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "4/4" in shown
    assert b"4/4" not in done.stdout
