"""Options of the worker: device, data types, quantization, memory and threads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import cores
from tests.e2e.harness import Server, run_tandem
from tests.e2e.options import role_pid

DEMO_BLOCK_BYTES = 2 * 4 * 16 * 2 * 32 * 2  # keys and values, layers, tokens, heads, head size, bfloat16


def refusal(*args: str) -> str:
    """Returns the error line of a `tandem serve` that cannot start."""
    ended = run_tandem("serve", "--port=0", *args)
    assert ended.returncode != 0
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("tandem ") and " error: --" in line)
    return line


@pytest.fixture(scope="module")
def fine() -> Iterator[Server]:
    with Server("--dtype=float32", "--no-batch-invariant", "--max-logprobs=-1") as server:
        yield server


@pytest.fixture(scope="module")
def compact() -> Iterator[Server]:
    quantized = ("--quantization=int8", "--no-enable-prefix-caching")
    with Server(*quantized, "--kv-cache-memory-bytes=1M", "--cpu-threads=3") as server:
        yield server


def test_dtype(plain: Server, fine: Server) -> None:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "logprobs": 1}
    one, other = (server.complete("Hello", **asked) for server in (plain, fine))
    assert one["token_ids"] == other["token_ids"]
    (low,), (high,) = (choice["logprobs"]["token_logprobs"] for choice in (one, other))
    assert low != high and low == pytest.approx(high, abs=0.1)
    assert "as bfloat16" in plain.log and "as float32" in fine.log


def test_max_logprobs(plain: Server, fine: Server) -> None:
    for server, most in ((plain, 20), (fine, 1024)):
        asked: dict[str, Any] = {"prompt": "Hello", "temperature": 0, "max_tokens": 1}
        answer = server.post("/v1/completions", {**asked, "logprobs": most})
        assert answer.status_code == 200, answer.text
        assert server.post("/v1/completions", {**asked, "logprobs": most + 1}).status_code == 400


def test_device(plain: Server) -> None:
    assert "loading weights on cpu" in plain.log
    if torch.cuda.is_available():
        with Server("--device=cuda") as server:
            assert "loading weights on cuda" in server.log
    else:
        assert "error: --device cuda: this machine has no CUDA device" in refusal("--device=cuda")


@pytest.mark.parametrize(("name", "kind", "kernels"), [("plain", "invariant", ""), ("fine", "fast", "torch, not ")])
def test_batch_invariant(request: pytest.FixtureRequest, name: str, kind: str, kernels: str) -> None:
    """Log and fingerprint name the kernels; tests/e2e/test_determinism.py tests the effect."""
    server: Server = request.getfixturevalue(name)
    answer = server.post("/v1/completions", {"prompt": [7], "max_tokens": 1}).json()
    assert answer["system_fingerprint"].startswith(f"{kind}-")
    assert f"{kernels}batch-invariant" in server.log


def test_quantization(plain: Server, compact: Server) -> None:
    """Logprobs differ slightly, and are the same each time; refused where the device has no such kernels."""
    prompt = list(range(900, 930))
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "logprobs": 1}
    first, again = (compact.complete(prompt, **asked) for _ in range(2))
    fingerprint = compact.post("/v1/completions", {"prompt": [7], "max_tokens": 1}).json()["system_fingerprint"]
    assert "+int8, batch-invariant" in compact.log
    assert first["logprobs"] == again["logprobs"]
    (exact,), (near,) = (one["logprobs"]["token_logprobs"] for one in (plain.complete(prompt, **asked), first))
    assert exact != near and exact == pytest.approx(near, abs=0.3)
    answer = plain.post("/v1/completions", {"prompt": [7], "max_tokens": 1}).json()
    assert fingerprint.startswith("invariant-") and fingerprint != answer["system_fingerprint"]
    line = refusal("--quantization=int8", "--no-batch-invariant")
    assert line.startswith("tandem worker: error: --quantization int8 does not go with --no-batch-invariant")
    line = refusal("--quantization=fp8", "--device=cpu")
    assert line.startswith("tandem worker: error: --quantization fp8 is for CUDA only")
    assert "'int4' is not one of int8, fp8" in refusal("--quantization=int4")


def test_kv_cache_memory_bytes(compact: Server) -> None:
    assert compact.stats().num_blocks == 2**20 // DEMO_BLOCK_BYTES


def test_gpu_memory_utilization() -> None:
    line = refusal("--device=cpu", "--gpu-memory-utilization=0.5")
    assert line.startswith("tandem worker: error: --gpu-memory-utilization is for CUDA only")


def test_cpu_threads(compact: Server, plain: Server) -> None:
    """The worker's main thread is one of them."""
    assert (num_helpers(compact), num_helpers(plain)) == (2, len(cores.ALL) - 1)


def num_helpers(server: Server) -> int:
    threads = Path(f"/proc/{role_pid(server, 'worker')}/task").glob("*/comm")
    return [thread.read_text().strip() for thread in threads].count("kernels")
