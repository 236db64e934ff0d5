"""Flags of older versions of vLLM, which scripts still have."""

import pytest

from tests.options.vllm.calls import refusal, taken


@pytest.mark.parametrize(
    "argv",
    [
        ["--disable-log-requests"],
        ["--swap-space", "16"],
        ["--swap_space=0.5"],
        ["--use-v2-block-manager"],
        ["--num-scheduler-steps=8"],
        ["--task", "generate"],
        ["--guided-decoding-backend=xgrammar"],
        ["--enable-reasoning"],
        ["--max-seq-len-to-capture", "8192"],
        ["--disable-frontend-multiprocessing"],
        ["--preemption-mode=swap"],
    ],
)
def test_what_changes_no_answer_is_taken(argv: list[str]) -> None:
    assert len(taken(*argv)) == 1


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--task", "embed"], "embeddings, scores"),
        (["--rope-scaling", '{"rope_type": "yarn", "factor": 4.0}'], "use --hf-overrides"),
        (["--rope-theta=10000"], "use --hf-overrides"),
        (["--speculative-model", "[ngram]", "--num-speculative-tokens", "5"], "speculative decoding"),
        (["--guided-decoding-disable-any-whitespace"], "use --structured-outputs-config"),
        (["--worker-use-ray"], "Ray"),
        (["--prompt-adapters", "a=b"], "prompt adapters"),
    ],
)
def test_what_is_missing_is_named(argv: list[str], named: str) -> None:
    assert named in refusal(*argv)


def test_a_swap_space_is_a_size() -> None:
    assert "--swap-space: -1 must be at least 0" in refusal("--swap-space=-1")
