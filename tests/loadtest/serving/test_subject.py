"""The server under test: a running one at --base-url, or `tandem serve` with the options after the dashes."""

import shlex
from typing import Any

import pytest

from loadtest.serving.command import Parser, UsageError
from loadtest.serving.subject import Subject, connect, fresh_requests, parse
from services.errors import Fatal
from tests.e2e.harness import run_tandem
from tests.loadtest.serving.other_server import OtherServer

SECONDS = 240.0  # a deadline for a busy machine, not an expectation
LATENCY = ("latency", "--input-len=16", "--output-len=8", "--batch-size=3", "--num-iters=4", "--num-iters-warmup=1")
THROUGHPUT = ("throughput", "--input-len=16", "--output-len=8", "--num-prompts=6", "--num-warmups=2")


def subject(*argv: str) -> Subject:
    return parse(Parser("test", "none"), argv)[1]


def test_without_a_url_the_command_serves_the_model_with_the_options_after_the_dashes() -> None:
    command = subject("some/model", "--start-timeout=7", "--", "--dtype=float32", "--api-key=a b").command
    words = shlex.split(command.line)
    assert words[1:] == [
        "-m",
        "services.cli",
        "serve",
        "some/model",
        "--dtype=float32",
        "--api-key=a b",
        "--port={port}",
    ]
    assert subject("some/model", "--start-timeout=7").start_timeout == 7
    assert shlex.split(subject().command.line)[1:] == ["-m", "services.cli", "serve", "--port={port}"]


def test_flags_before_the_dashes_are_for_the_benchmark() -> None:
    parser = Parser("test", "none")
    parser.add_argument("--own", type=int)
    values, found = parse(parser, ["--own=3", "--base-url=http://a:1/v1/", "--model=m", "--api-key=k"])
    assert values.own == 3
    assert (found.base_url, found.model, found.api_key) == ("http://a:1", "m", "k")
    with pytest.raises(UsageError, match="unrecognized arguments: --dtype=float32"):
        subject("--dtype=float32")


async def test_connect_finds_the_model_of_a_running_server() -> None:
    with OtherServer(models=("listed",)) as server:
        async with connect(subject(f"--base-url={server.url}")) as (_, target):
            found: dict[str, Any] = vars(target)
    assert found == {
        "base_url": server.url,
        "endpoint": "/v1/completions",
        "model": "listed",
        "chat": False,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    with pytest.raises(Fatal, match="no server answers"):
        async with connect(subject(f"--base-url={server.url}")):
            pass


def test_fresh_requests_never_repeat_a_prompt() -> None:
    first, second = (fresh_requests(5, 16, 3) for _ in range(2))
    assert {(len(request.prompt), request.output_len) for request in first} == {(16, 3)}
    assert len({request.prompt for request in [*first, *second]}) == 10


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
        ("latency --base-url=http://a demo", "latency: error: --base-url is for a running server: MODEL and options"),
        ("latency --base-url=http://a -- --dtype=bfloat16", "latency: error: --base-url is for a running server"),
        ("latency --model=x", "latency: error: --model is for a server at --base-url"),
        ("throughput --base-url=a", "throughput: error: --base-url: 'a' is not a URL such as http://127.0.0.1:8000"),
        ("steer", "tandem bench: error: unknown command 'steer'; the commands are serve, latency, throughput, sweep,"),
    ],
)
def test_a_wrong_command_line_is_one_line(command: str, message: str) -> None:
    done = run_tandem("bench", *command.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr
