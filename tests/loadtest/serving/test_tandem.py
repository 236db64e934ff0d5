"""`tandem bench serve` against `tandem serve`, both as real processes: token ids, text, chat, rate and limit."""

import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from tests.e2e.harness import Server, run_tandem
from tests.loadtest.serving.bench_process import bench, bench_result

SMALL = ("--num-prompts=6", "--random-input-len=24", "--random-output-len=12", "--temperature=0", "--ignore-eos")
CHAT = ("--endpoint=/v1/chat/completions", "--tokenizer=demo")


def test_prompts_and_answers_have_the_requested_lengths(server: Server, tmp_path: Path) -> None:
    found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL)
    assert (found["completed"], found["failed"], found["failures"]) == (6, 0, {})
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (6 * 24, 6 * 12)
    assert (found["without_usage"], found["other_output_len"]) == (0, 0)


def test_the_saved_numbers_agree_with_each_other(server: Server, tmp_path: Path) -> None:
    longer = ("--random-output-len=64", "--max-concurrency=2")
    found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL, *longer)
    assert found["date"][:2] == "20"
    head = ("backend", "model_id", "tokenizer_id", "num_prompts", "request_rate", "max_concurrency")
    assert [found[name] for name in head] == ["openai", "demo", None, 6, "inf", 2]
    assert found["request_throughput"] == pytest.approx(6 / found["duration"])
    assert found["output_throughput"] == pytest.approx(384 / found["duration"])
    assert found["total_token_throughput"] == pytest.approx((144 + 384) / found["duration"])
    assert found["max_concurrent_requests"] == 2
    for metric in ("ttft", "tpot", "itl", "e2el"):
        mean, median, std, p99 = (found[f"{word}_{metric}_ms"] for word in ("mean", "median", "std", "p99"))
        assert 0 < mean <= p99 < inf
        # Several tokens may arrive in one chunk: then the time between them is 0.
        assert median <= p99 and (median > 0 or (metric == "itl" and median == 0))
        assert std >= 0
    assert found["mean_ttft_ms"] < found["mean_e2el_ms"]
    # The first token, then 63 more.
    assert found["mean_e2el_ms"] == pytest.approx(found["mean_ttft_ms"] + 63 * found["mean_tpot_ms"])


def test_the_table(server: Server) -> None:
    done = bench(f"--base-url={server.url}", *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[-1] == "=" * 50
    assert "Total generated tokens:                  72" in lines


def test_text_prompts_have_the_requested_length(server: Server, tmp_path: Path) -> None:
    text = ("--tokenizer=demo", "--random-prefix-len=10")
    found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL, *text)
    assert found["total_input_tokens"] == 6 * (10 + 24)
    assert found["tokenizer_id"] == "demo"


def test_chat(server: Server, tmp_path: Path) -> None:
    found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL, *CHAT)
    assert (found["backend"], found["completed"], found["total_output_tokens"]) == ("openai-chat", 6, 72)
    assert found["total_input_tokens"] > 6 * 24  # the chat template adds tokens


def test_rate_and_limit(server: Server, tmp_path: Path) -> None:
    flags = ("--num-prompts=10", "--request-rate=20", "--max-concurrency=3", "--num-warmups=1")
    found = bench_result(tmp_path, f"--base-url={server.url}", *SMALL, *flags)
    assert (found["completed"], found["request_rate"]) == (10, 20.0)
    assert 1 <= found["max_concurrent_requests"] <= 3


def test_a_refused_request_is_reported_with_the_servers_message(server: Server) -> None:
    done = bench(f"--base-url={server.url}", *SMALL, "--random-input-len=9999")
    assert done.returncode == 1
    assert "Failed 6 times: HTTP 400: " in done.stdout


def test_a_wrong_command_line_is_one_line() -> None:
    for arguments in (("bench",), ("bench", "steer"), ("bench", "serve", "--num-prompts=none")):
        done = run_tandem(*arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith("tandem bench")


def test_help_lists_the_benchmarks_without_importing_them() -> None:
    code = "import sys, services.cli as c; c.main(['--help']); assert not {'loadtest', 'aiohttp'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "bench serve" in done.stdout
    assert "--num-prompts" in run_tandem("bench", "serve", "--help").stdout
