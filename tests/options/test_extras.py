"""The base installation, without extras: what it imports, what it refuses. Its missing packages are blocked here."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKER = ("torch", "triton", "safetensors")
BENCH = ("aiohttp", "matplotlib", "tqdm")
GATEWAY = ("smg_grpc_proto",)
TEST = ("httpx", "transformers", "grpc_tools")
BLOCKED = "import sys; sys.modules.update(dict.fromkeys({names!r})); "  # None makes an import fail
RUN = "from services.cli import main; sys.exit(main(sys.argv[1:]))"


def without(names: tuple[str, ...], code: str, *argv: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", BLOCKED.format(names=names) + code, *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_three_roles_and_the_launcher_need_no_extra() -> None:
    """tqdm stays: huggingface_hub, which fetches a tokenizer, brings it."""
    modules = [f"services.{role}.service" for role in ("shim", "tokenizer", "engine")]
    modules += [
        "services.process.launcher",
        "services.engine.replay",
        "services.telemetry.otel",
        "huggingface_hub",
    ]
    blocked = tuple(name for name in (*WORKER, *BENCH, *GATEWAY, *TEST) if name not in ("tqdm", "httpx"))
    ended = without(blocked, f"import {', '.join(modules)}")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("command", ["--help", "shim --help", "worker --help", "serve --help", "bench --help"])
def test_help_needs_no_extra(command: str) -> None:
    ended = without((*WORKER, *BENCH, *TEST), RUN, *command.split())
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("usage: tandem")


@pytest.mark.parametrize("command", ["engine", "transport"])
def test_benchmarks_of_the_base_need_no_extra(command: str) -> None:
    ended = without((*WORKER, *BENCH, *TEST), RUN, "bench", command, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "blocked", "extra"),
    [
        ("serve", WORKER, "worker"),
        ("worker", WORKER, "worker"),
        ("bench kernels", WORKER, "worker"),
        ("bench serve", BENCH, "bench"),
        ("bench latency", BENCH, "bench"),
        ("bench throughput", BENCH, "bench"),
        ("bench sweep", BENCH, "bench"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(command: str, blocked: tuple[str, ...], extra: str) -> None:
    ended = without(blocked, RUN, *command.split())
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"tandem {command}: error: ")
    assert line.endswith(f"pip install 'tandem-llm[{extra}]'")


@pytest.mark.parametrize("command", ["shim", "serve no-such-model"])
def test_a_gateway_without_its_extra_is_refused_at_once(command: str) -> None:
    ended = without(GATEWAY, RUN, *command.split(), "--port=0", "--grpc-port=0")
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    role = command.split()[0]
    assert line == f"tandem {role}: error: --grpc-port needs smg_grpc_proto: pip install 'tandem-llm[grpc]'"


def test_a_wrong_command_line_comes_before_a_missing_extra() -> None:
    ended = without(WORKER, RUN, "worker", "--block-size=x")
    assert ended.returncode == 2 and "--block-size" in ended.stderr
