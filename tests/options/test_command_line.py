"""The command line over the declared options: what flags, environment and files become, what is refused in one line,
and the way to the roles."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.options.command_line import parse, role_argv, role_environment
from services.options.commands import flag_of, serve_settings
from services.options.declarations import ROLE_OPTIONS, ROLES, EngineOptions, ServeOptions, settings_of
from services.options.setting import (
    Setting,
    UsageError,
    addresses,
    boolean,
    host_and_port,
    integer,
    json_object,
    named_addresses,
)


def refusal(command: str, *argv: str) -> str:
    """The message with which a command line is refused: one line."""
    with pytest.raises(UsageError) as caught:
        parse(command, list(argv))
    message = str(caught.value)
    assert "\n" not in message
    return message


def from_file(tmp_path: Path, text: str, command: str = "serve", *argv: str) -> Any:
    file = tmp_path / "options.yaml"
    file.write_text(text)
    return parse(command, [f"--config={file}", *argv])


def file_refusal(tmp_path: Path, text: str, command: str = "serve") -> str:
    (tmp_path / "options.yaml").write_text(text)
    return refusal(command, f"--config={tmp_path / 'options.yaml'}")


@pytest.mark.parametrize("command", ["serve", *ROLES])
def test_nothing_given_means_the_defaults(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (env for one in serve_settings().values() for env in one.env):
        monkeypatch.delenv(variable, raising=False)
    options = ServeOptions if command == "serve" else ROLE_OPTIONS[command]
    assert parse(command, []) == options()


@pytest.mark.parametrize("command", ["serve", *ROLES])
def test_help_names_every_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(command, ["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    names = settings_of(ServeOptions if command == "serve" else ROLE_OPTIONS[command])
    for name, one in names.items():
        assert (name.upper() if one.positional else flag_of(name)) in text


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse("engine", []).max_num_seqs = 1


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("1k", 1000), ("2.5K", 2560), ("4M", 4 * 2**20), ("8G", 8 * 2**30), ("1g", 10**9), ("0.5t", 5 * 10**11)],
)
def test_sizes_for_people(text: str, number: int) -> None:
    assert parse("worker", [f"--kv-cache-memory-bytes={text}"]).kv_cache_memory_bytes == number


@pytest.mark.parametrize(
    "text", ["", "k", "1.5", "4GB", "4 GiB", "infk", "nank", "-infG", "1e999k", "nan", "inf", "one"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    assert f"--max-model-len: {text!r} is not valid" in refusal("worker", f"--max-model-len={text}")


@pytest.mark.parametrize(
    ("command", "flag", "value", "limit"),
    [
        ("shim", "--port", "65536", "from 0 to 65535"),
        ("shim", "--port", "-1", "from 0 to 65535"),
        ("engine", "--max-num-seqs", "0", "from 1 to 65536"),
        ("engine", "--max-num-batched-tokens", "0", "at least 1"),
        ("engine", "--step-timeout", "inf", "from 0.1 to 86400"),
        ("engine", "--step-timeout", "nan", "from 0.1 to 86400"),
        ("engine", "--seed", "-1", "from 0 to"),
        ("engine", "--seed", str(2**63), "from 0 to"),
        ("worker", "--block-size", "1025", "from 1 to 1024"),
        ("worker", "--max-model-len", "-5k", "at least 1"),
        ("worker", "--kv-cache-memory-bytes", "0", "at least 1"),
        ("worker", "--gpu-memory-utilization", "1.01", "from 0.01 to 1"),
        ("worker", "--gpu-memory-utilization", "nan", "from 0.01 to 1"),
        ("serve", "--tokenizer-replicas", "65", "from 1 to 64"),
    ],
)
def test_a_value_out_of_range_is_told_with_option_and_limit(command: str, flag: str, value: str, limit: str) -> None:
    assert refusal(command, f"{flag}={value}").startswith(f"{flag}: {value} must be {limit}")


@pytest.mark.parametrize(
    ("flag", "value"), [("--device", "tpu"), ("--dtype", "int8"), ("--load-format", "pickle"), ("--dtype", "")]
)
def test_a_value_that_is_no_choice_is_told_with_the_choices(flag: str, value: str) -> None:
    message = refusal("worker", f"{flag}={value}")
    choices = settings_of(ROLE_OPTIONS["worker"])[flag[2:].replace("-", "_")].choices
    assert message == f"{flag}: {value!r} is not one of {', '.join(choices)}"


@pytest.mark.parametrize(
    "argv", [["--api-key="], ["--host="], [""], ["--served-model-name", "a", ""], ["--chat-template", ""]]
)
def test_an_empty_text_is_refused(argv: list[str]) -> None:
    """An empty key would leave the server open."""
    assert refusal("serve", *argv).endswith(": must not be empty")


@pytest.mark.parametrize("command", ["serve", "engine"])
def test_a_step_must_have_room_for_every_request_that_runs(command: str) -> None:
    assert "must be at least --max-num-seqs, 128" in refusal(command, "--max-num-batched-tokens=64")
    assert "must be at least --max-num-seqs, 4096" in refusal(command, "--max-num-seqs=4096")


@pytest.mark.parametrize("text", ["{", "[1]", "7", "null", ""])
def test_overrides_must_be_a_json_object(text: str) -> None:
    assert refusal("worker", f"--hf-overrides={text}").startswith("--hf-overrides:")


@pytest.mark.parametrize("argv", [["--nonsense"], ["--max-num-seq=4"], ["demo", "demo"], ["--port"], ["--config"]])
def test_a_wrong_command_line_is_refused(argv: list[str]) -> None:
    assert argv[0] in refusal("serve", *argv)


def test_an_internal_option_is_not_for_the_user() -> None:
    assert "--parent-death-fd" in refusal("serve", "--parent-death-fd=3")


def test_serve_keeps_what_was_given_for_the_roles() -> None:
    options = parse("serve", ["demo", "--tokenizer-replicas=2", "--seed=3", "--served-model-name", "a", "b"])
    assert options == ServeOptions(2, None, {"model": "demo", "seed": 3, "served_model_name": ("a", "b")})


def test_the_file_is_read_and_flags_win_over_it(tmp_path: Path) -> None:
    text = "model: somewhere\nmax-model-len: 1k\nblock_size: 8\nenable-prefix-caching: false\nseed: null\n"
    options = from_file(tmp_path, text, "serve", "--max-model-len=64")
    assert options.role_values == {
        "model": "somewhere",
        "max_model_len": 64,
        "block_size": 8,
        "enable_prefix_caching": False,
    }


def test_a_file_holds_lists_and_objects_as_yaml(tmp_path: Path) -> None:
    text = "served-model-name: [a, b]\nhf-overrides: {rope_theta: 1.5, tie: true}\ngpu-memory-utilization: 0.5\n"
    assert from_file(tmp_path, text).role_values == {
        "served_model_name": ("a", "b"),
        "hf_overrides": {"rope_theta": 1.5, "tie": True},
        "gpu_memory_utilization": 0.5,
    }


def test_the_environment_stands_between_file_and_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", "from-environment")
    assert from_file(tmp_path, "api-key: from-file", "shim").api_key == "from-environment"
    assert from_file(tmp_path, "", "shim", "--api-key=from-flag").api_key == "from-flag"
    monkeypatch.delenv("TANDEM_API_KEY")
    assert from_file(tmp_path, "api-key: from-file", "shim").api_key == "from-file"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_says_nothing(tmp_path: Path, text: str) -> None:
    assert from_file(tmp_path, text) == ServeOptions()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense: 1", "unknown option 'nonsense'"),
        ("config: other.yaml", "unknown option 'config'"),
        ("parent_death_fd: 3", "unknown option 'parent_death_fd'"),
        ("7: 1", "unknown option '7'"),
        ("[1, 2]", "not a mapping"),
        ("just text", "not a mapping"),
        ("a: [", "--config"),
        ("block_size: 0", "--block-size: 0 must be from 1 to 1024"),
        ("block_size: [1]", "--block-size: '[1]' is not valid"),
        ("block_size: 2020-01-01", "--block-size"),
        ("port: true", "--port"),
        ("host: no", "--host"),
        ("revision: 2024-01-01", "--revision"),
        ("revision: 0123", "--revision"),
        ("api_key: 0123", "--api-key"),
        ("served-model-name: [1]", "--served-model-name"),
        ("served-model-name: {a: 1}", "--served-model-name"),
        ("served-model-name: []", "--served-model-name"),
        ("enable_prefix_caching: maybe", "--enable-prefix-caching: 'maybe' is not valid: neither true nor false"),
        ("enable_prefix_caching: 0", "--enable-prefix-caching"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in file_refusal(tmp_path, text)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in refusal("serve", f"--config={tmp_path / 'none'}")
    assert str(tmp_path) in refusal("serve", f"--config={tmp_path}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    assert str(tmp_path / "binary") in refusal("serve", f"--config={tmp_path / 'binary'}")


def test_the_key_travels_in_the_environment_only() -> None:
    values = {"api_key": "secret", "host": "::1", "model": "demo"}
    assert role_environment("shim", values) == {"TANDEM_API_KEY": "secret"}
    assert role_environment("worker", values) == {}
    assert role_argv("shim", values) == ["--host=::1"]
    assert role_argv("engine", values) == []


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_the_kernels_may_come_from_the_environment(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*argv: str) -> str | None:
        options = parse(command, list(argv))
        values = options.role_values if command == "serve" else dataclasses.asdict(options)
        return values.get("cpu_kernels")

    monkeypatch.setenv("TANDEM_CPU_KERNELS", "portable")
    assert (found(), found("--cpu-kernels=avx2")) == ("portable", "avx2")
    assert role_environment("worker", {"cpu_kernels": "avx2"}) == {"TANDEM_CPU_KERNELS": "avx2"}
    monkeypatch.setenv("TANDEM_CPU_KERNELS", "sse")
    assert refusal(command) == "TANDEM_CPU_KERNELS: 'sse' is not one of amx, avx512bf16, avx2, portable"
    monkeypatch.setenv("TANDEM_CPU_KERNELS", "")
    assert found() is None


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1) | st.just("--seed")
PARTS = TEXTS.filter(lambda text: "," not in text)
PORTS = st.integers(0, 65535).map("[::1]:{}".format)
JSON = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text())


def values_of(one: Setting) -> st.SearchStrategy[Any]:
    """Every value that a setting may have, from its declaration."""
    if one.choices:
        return st.sampled_from(one.choices)
    if one.positional:
        return TEXTS.filter(lambda text: not text.startswith("-"))
    if one.many:
        return st.lists(TEXTS, min_size=1).map(tuple)
    numbers = st.integers(int(one.low or 0), int(2**40 if one.high is None else one.high))
    by_parser: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXTS,
        int: numbers,
        integer: numbers,
        float: st.floats(one.low, one.high),
        boolean: st.booleans(),
        json_object: JSON,
        host_and_port: PORTS,
        addresses: st.lists(PARTS, min_size=1).map(tuple),
        named_addresses: st.lists(PORTS.map("engine={}".format), min_size=1).map(tuple),
    }
    return by_parser[one.parse]


def options_of(role: str) -> st.SearchStrategy[Any]:
    """Options of one role, each setting given or not; without those that travel in the environment."""
    kinds = ROLE_OPTIONS[role]
    some = {name: values_of(one) for name, one in settings_of(kinds).items() if not one.env}
    return st.fixed_dictionaries({}, optional=some).map(lambda values: kinds(**values)).filter(fit_together)


def fit_together(options: Any) -> bool:
    return not isinstance(options, EngineOptions) or options.max_num_batched_tokens >= options.max_num_seqs


@pytest.mark.parametrize("role", ROLES)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_a_role_reads_back_what_the_launcher_writes(role: str, data: st.DataObject) -> None:
    options = data.draw(options_of(role))
    assert parse(role, role_argv(role, dataclasses.asdict(options))) == options


@settings(deadline=None, max_examples=50)
@given(values=JSON)
def test_overrides_come_through_as_they_are(values: dict[str, Any]) -> None:
    assert parse("worker", ["--hf-overrides", json.dumps(values)]).hf_overrides == values


def test_a_wrong_value_of_the_environment_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CPU_KERNELS", "AVX2")
    with pytest.raises(UsageError, match="^TANDEM_CPU_KERNELS: 'AVX2' is not one of amx, "):
        parse("worker", [])
    with pytest.raises(UsageError, match="^--cpu-kernels: 'SSE' is not one of amx, "):
        parse("worker", ["--cpu-kernels=SSE"])


def test_what_the_locale_cannot_decode_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^MODEL: '\\udcfc' in 'modell-\\udcfc' is not a character of this locale"):
        parse("serve", ["modell-\udcfc"])


@pytest.mark.parametrize("address", ["::1", "::1:0", "fe80::1:80"])
def test_an_ipv6_address_without_brackets_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="an IPv6 address needs brackets"):
        parse("worker", [f"--metrics-listen={address}"])
