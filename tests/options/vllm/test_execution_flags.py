"""vLLM's flags about kernels, compilation, speculation and metrics."""

import pytest

from tests.options.vllm.calls import refusal, taken


@pytest.mark.parametrize(
    "argv",
    [
        ["--compilation-config", '{"mode": 3, "cudagraph_capture_sizes": [1, 2]}'],
        ["--compilation-config", "3"],
        ["-cc.cudagraph_mode=FULL"],
        ["-O3"],
        ["-O", "1"],
        ["--optimization-level=2"],
        ["--attention-backend", "FLASH_ATTN"],
        ["-ac.backend", "FLASHINFER"],
        ["--moe-backend=triton"],
        ["--performance-mode", "throughput"],
        ["--reasoning-config", '{"reasoning_start_str": "<think>"}'],
        ["--collect-detailed-traces", "model", "worker"],
        ["--spec-tokens=0"],
    ],
)
def test_how_the_model_is_executed_is_taken(argv: list[str]) -> None:
    assert len(taken(*argv)) == 1


def test_levels_are_those_of_vllm() -> None:
    assert "--optimization-level: 4 must be from 0 to 3" in refusal("-O4")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}'], "speculative decoding"),
        (["-sc.method=ngram", "-sc.num_speculative_tokens", "2"], "speculative decoding"),
        (["--spec-model", "draft"], "speculative decoding"),
        (["--kv-transfer-config", '{"kv_connector": "NixlConnector"}'], "moving the KV cache between servers"),
        (["--kv-events-config={}"], "events about the KV cache"),
        (["--additional-config.graph", "1"], "settings of vLLM's hardware plugins"),
        (["--reasoning-parser-plugin=x.py"], "--tool-parser-plugin"),
        (["--kv-cache-metrics"], "these metrics"),
        (["--profiler-config.profiler=torch"], "profiling on request"),
    ],
)
def test_what_is_missing_is_named(argv: list[str], named: str) -> None:
    assert named in refusal(*argv)
