"""vLLM's spellings, files and values as `tandem serve` reads them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.options.command_line import parse
from services.options.vllm.reader import file_values, flags_beside, renamed, settled, spelled
from services.options.vllm.table import FLAGS, SHORT
from tests.options.vllm.calls import MODEL, refusal, serve, taken


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--max_model_len", "--max-model-len"),
        ("--max_model_len=4_096", "--max-model-len=4_096"),
        ("--compilation_config.cudagraph_mode", "--compilation-config.cudagraph_mode"),
        ("-tp", "--tensor-parallel-size"),
        ("-tp=2", "--tensor-parallel-size=2"),
        ("-cc.pass_config.fuse_norm=True", "--compilation-config.pass_config.fuse_norm=True"),
        ("-O3", "--optimization-level=3"),
        ("-O=2", "--optimization-level=2"),
        ("-O", "--optimization-level"),
        ("-O.mode=3", "--compilation-config.mode=3"),
        ("-tpx", "-tpx"),
        ("-1", "-1"),
        ("-", "-"),
        ('{"a_b": "-tp"}', '{"a_b": "-tp"}'),
    ],
)
def test_a_spelling_of_vllm_is_a_long_flag_with_dashes(word: str, meant: str) -> None:
    assert spelled([word]) == [meant]


@pytest.mark.parametrize(
    ("argv", "keys"),
    [
        ([MODEL, "--api-key", "a", "b", "--port", "1"], ("a", "b")),
        ([MODEL, "--api_key", "a", "b", "--api-key", "c"], ("a", "b", "c")),
        (["--api-key", "a", MODEL], ("a",)),
    ],
)
def test_several_keys_behind_one_flag(argv: list[str], keys: tuple[str, ...]) -> None:
    """Unless one of the words could be the model."""
    found = parse("serve", argv).role_values
    assert (found["api_key"], found["model"]) == (keys, MODEL)


@pytest.mark.parametrize("argv", [["--api-key=a", "b"], ["--port", "1", "b"]])
def test_a_word_too_many(argv: list[str]) -> None:
    assert "unrecognized arguments" in refusal(*argv)


def test_words_after_two_dashes_stay() -> None:
    assert spelled(["--a_b", "--", "--a_b", "-tp"]) == ["--a-b", "--", "--a_b", "-tp"]


@given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from([*SHORT, "--a_b=c_d", "-O3", "--"])), max_size=6))
def test_spelling_twice_changes_nothing(words: list[str]) -> None:
    assert spelled(spelled(words)) == spelled(words)


def test_no_short_form_is_one_of_tandems_own() -> None:
    with pytest.raises(SystemExit):
        parse("serve", ["-h"])
    assert "-h" not in SHORT


def test_flags_without_effect_are_told_and_change_no_option() -> None:
    argv = ["--enforce-eager", "--no-use-tqdm-on-load", "--swap-space=16", "-tp", "1", "--compilation-config", "3"]
    assert serve(*argv).without_effect == (
        *("--enforce-eager", "--no-use-tqdm-on-load", "--tensor-parallel-size", "--compilation-config"),
        "--swap-space",
    )
    assert serve(*argv).role_values == {"model": MODEL}


def test_the_form_of_a_value_without_effect_is_checked() -> None:
    assert refusal("--swap-space", "much") == (
        "--swap-space: 'much' is not valid: could not convert string to float: 'much'"
    )
    assert "--uvicorn-log-level: 'loud' is not one of critical" in refusal("--uvicorn-log-level=loud")
    assert "--compilation-config: '{' is not valid" in refusal("--compilation-config={")
    assert "argument --max-log-len: expected one argument" in refusal("--max-log-len")


def test_lists_take_the_words_up_to_the_next_flag() -> None:
    assert taken("--cudagraph-capture-sizes", "1", "2", "4", "-O2") == (
        "--optimization-level",
        "--cudagraph-capture-sizes",
    )
    assert "--cudagraph-capture-sizes: 'x' is not valid" in refusal("--cudagraph-capture-sizes", "1", "x")


def test_dotted_flags_are_one_object() -> None:
    assert taken(
        "-cc.mode", "3", "--attention-config.backend=FLASH_ATTN", "--compilation_config.cudagraph_mode", "NONE"
    )
    assert refusal("--limit-mm-per-prompt.image", "2", "--limit-mm-per-prompt.video=0").endswith("not supported yet")
    assert taken("--limit-mm-per-prompt.image", "0", "--limit-mm-per-prompt.video=0") == ("--limit-mm-per-prompt",)
    lists = ("--kv-transfer-config.kv_connector", "Nixl", "--kv-transfer-config.extra.backends+", "LIBFABRIC")
    assert "moving the KV cache between servers" in refusal(*lists)


def test_all_that_is_missing_is_named_in_one_line() -> None:
    message = refusal("--tensor-parallel-size=8", "-q", "awq", "--enable-lora", "--load-format", "gguf")
    assert message.count("; ") == 3
    for part in ("--tensor-parallel-size 8: one model on", "--quantization awq: ", "--enable-lora: ", "GGUF files"):
        assert part in message


def test_the_model_as_a_flag() -> None:
    assert parse("serve", ["--model", "a", "--tokenizer=a"]).role_values == {"model": "a"}
    with pytest.raises(Exception, match="--model sets the option model, which is given as well"):
        parse("serve", ["--model", "a", "b"])


def test_a_renamed_flag_is_the_option_with_its_range() -> None:
    assert serve("--h11-max-header-count", "300").role_values["max_header_count"] == 300
    assert "--max-header-count: 2 must be from 16 to 65536" in refusal("--h11-max-header-count", "2")
    assert "is given as well" in refusal("--h11-max-header-count=300", "--max-header-count=300")


def test_a_length_that_fits_is_the_default() -> None:
    assert (
        serve("--max-model-len", "-1").role_values == serve("--max-model-len", "auto").role_values == {"model": MODEL}
    )
    assert serve("--max-model-len=4k").role_values["max_model_len"] == 4000


@pytest.mark.parametrize("argv", [["--nonsense"], ["-t", "2"], ["--tensor-parallel"], ["-tp2"]])
def test_an_unknown_flag_keeps_its_error(argv: list[str]) -> None:
    assert refusal(*argv) == f"unrecognized arguments: {' '.join(argv)}"


def test_roles_have_no_flags_of_vllm() -> None:
    with pytest.raises(Exception, match="unrecognized arguments: --enforce-eager"):
        parse("worker", ["--enforce-eager"])
    with pytest.raises(Exception, match=r"--quantization awq: quantised checkpoints \(awq\) are not supported yet"):
        parse("worker", ["--quantization=awq"])


# Source: vllm-project/recipes, Llama/Llama3.3-70B.md and OpenAI/GPT-OSS.md, without what is refused.
FILE = """
compilation-config: '{"pass_config":{"enable_fi_allreduce_fusion":true,"enable_noop":true}}'
async-scheduling: true
no-enable-prefix-caching: true
max-num-batched-tokens: 8192
max-cudagraph-capture-size: 2048
tensor_parallel_size: 1
cudagraph-capture-sizes: [1, 2]
attention-config: {backend: FLASH_ATTN}
no-enforce-eager: false
"""


def test_a_file_of_vllm(tmp_path: Path) -> None:
    (tmp_path / "vllm.yaml").write_text(FILE)
    options = serve("--config", str(tmp_path / "vllm.yaml"))
    assert options.role_values == {
        "model": MODEL,
        "async_scheduling": True,
        "enable_prefix_caching": False,
        "max_num_batched_tokens": 8192,
    }
    assert set(options.without_effect) == {
        *("--compilation-config", "--max-cudagraph-capture-size", "--tensor-parallel-size", "--enforce-eager"),
        *("--cudagraph-capture-sizes", "--attention-config"),
    }


def test_a_file_is_refused_as_a_command_line_is_and_a_flag_overrides_it(tmp_path: Path) -> None:
    (tmp_path / "vllm.yaml").write_text("tensor-parallel-size: 2\nkv-cache-dtype: fp8\nmodel: other\n")
    config = f"--config={tmp_path / 'vllm.yaml'}"
    assert refusal(config).count("not supported yet") == 2
    assert serve(config, "-tp", "1", "--kv-cache-dtype=auto").role_values == {"model": MODEL}
    assert parse("serve", [config, "-tp=1", "--kv-cache-dtype=auto", "--model=m"]).role_values == {"model": "m"}
    (tmp_path / "vllm.yaml").write_text("nonsense: 1")
    assert refusal(config).endswith("unknown option 'nonsense'")


def test_file_values_of_a_role_are_its_own_options() -> None:
    assert file_values({"tensor_parallel_size": 1}, {}, {}) == {"tensor_parallel_size": 1}


def test_what_is_not_given_is_not_read() -> None:
    assert renamed({}) == {}
    assert settled({"--enforce-eager": None}, lambda one, name, raw: raw).without_effect == ()
    assert flags_beside().keys() == {f"--{flag.name}" for flag in FLAGS.values() if flag.kind != "same"}
