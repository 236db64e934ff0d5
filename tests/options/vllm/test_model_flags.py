"""vLLM's flags about the model and its files: quantised checkpoints and pooling are refused, in words."""

import pytest

from tests.options.vllm.calls import MODEL, refusal, serve, taken


@pytest.mark.parametrize("method", ["awq", "gptq_marlin", "compressed-tensors", "bitsandbytes", "mxfp4"])
def test_a_quantised_checkpoint_is_named(method: str) -> None:
    message = f"--quantization {method}: quantised checkpoints ({method}) are not supported yet"
    assert refusal("--quantization", method) == refusal("-q", method) == message


def test_quantization_on_load_is_tandems_own() -> None:
    assert serve("-q", "int8").role_values["quantization"] == "int8"
    assert "--quantization: 'unheard' is not one of int8, fp8" in refusal("-q=unheard")


@pytest.mark.parametrize(
    "argv",
    [
        ["--trust-remote-code"],
        ["--enforce-eager"],
        ["--runner", "generate"],
        ["--convert=none"],
        ["--tokenizer-mode", "hf"],
        ["--config_format", "hf"],
        ["--model-impl=vllm"],
        ["--logprobs-mode=raw_logprobs"],
        ["--tokenizer", MODEL],
        ["--hf-config-path", MODEL],
        ["--pooler-config={}"],
        ["--model-loader-extra-config", '{"enable_multithread_load": true}'],
    ],
)
def test_what_is_so_anyway_is_taken(argv: list[str]) -> None:
    assert len(taken(*argv)) == 1


def test_the_default_format_of_weights_is_no_option() -> None:
    assert taken("--load_format", "hf") == ()


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--runner=pooling"], "embeddings, scores and other pooling"),
        (["--tokenizer", "another"], "a tokenizer or configuration that is not beside the weights"),
        (["--tokenizer-revision", "main"], "a tokenizer or configuration that is not beside the weights"),
        (["--tokenizer-mode=mistral"], "tokenizer.json is the only kind of tokenizer"),
        (["--load-format", "runai_streamer"], "weights from the Run:ai streamer are not supported"),
        (["--logits-processors", "a.b"], "Python code from outside"),
        (["--hf-token", "hf_secret"], "the environment variable HF_TOKEN"),
        (["--download-dir", "/models"], "the environment variable HF_HOME"),
        (["--disable-sliding-window"], "use --max-model-len"),
        (["--enable-prompt-embeds"], "prompts as embeddings"),
    ],
)
def test_what_is_missing_is_named(argv: list[str], named: str) -> None:
    assert named in refusal(*argv)


def test_a_revision_that_is_the_models_is_taken() -> None:
    options = serve("--revision=v1", "--tokenizer-revision=v1")
    assert options.without_effect == ("--tokenizer-revision",)


def test_a_token_is_not_shown() -> None:
    assert "hf_secret" not in refusal("--hf-token", "hf_secret")
