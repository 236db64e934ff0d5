"""vLLM's flags about KV cache, memory and scheduling: a smaller cache and offloading are refused, tuning is taken."""

import pytest

from tests.options.vllm.calls import refusal, serve, taken


@pytest.mark.parametrize(
    "argv",
    [
        ["--kv-cache-dtype", "auto"],
        ["--cpu-offload-gb", "0"],
        ["--kv-offloading-size=0.0"],
        ["--enable-chunked-prefill"],
        ["--no-enable-chunked-prefill"],
        ["--prefix-caching-hash-algo=sha256_cbor"],
        ["--max-num-partial-prefills", "2"],
        ["--watermark=0.01"],
        ["--stream-interval=1"],
        ["--mamba-cache-dtype=float32"],
    ],
)
def test_what_changes_no_answer_is_taken(argv: list[str]) -> None:
    assert len(taken(*argv)) == 1


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--kv-cache-dtype", "fp8"], "a quantised KV cache"),
        (["--cpu-offload-gb", "10"], "weights in the host's memory"),
        (["--kv-offloading-size", "4"], "a KV cache in the host's memory"),
        (["--num-gpu-blocks-override=100"], "--kv-cache-memory-bytes"),
        (["--scheduler-cls=a.b"], "Python code from outside"),
        (["--stream-interval", "20"], "chunks of several tokens"),
    ],
)
def test_what_is_missing_is_named(argv: list[str], named: str) -> None:
    assert named in refusal(*argv)


def test_limits_have_the_same_names() -> None:
    options = serve("--max_num_seqs=8", "--max-num-batched-tokens", "1k", "--no-enable-prefix-caching")
    assert options.role_values["max_num_batched_tokens"] == 1000
    assert options.role_values["enable_prefix_caching"] is False
