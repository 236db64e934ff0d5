"""Flags, environment and files become options; wrong ones are refused in one line; roles read what `serve` writes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.options.command_line import inherited_environment, parse, role_argv, role_environment
from services.options.commands import flag_of, serve_settings, settings_of_command
from services.options.declarations import ROLE_OPTIONS, ROLES, EngineOptions, ServeOptions, ShimOptions, settings_of
from services.options.http import path_prefix
from services.options.setting import (
    Setting,
    UsageError,
    addresses,
    boolean,
    host_and_port,
    integer,
    json_object,
    named_addresses,
    origins,
    text_list,
)
from services.options.structured import structured_outputs


def refusal(command: str, *argv: str) -> str:
    """Returns the message that refuses a command line: one line."""
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
def test_an_empty_command_line_gives_the_defaults(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    for name, one in settings_of_command(command).items():
        flag = name.upper() if one.positional else flag_of(name)
        assert one.in_environment_only or flag in text, name


@pytest.mark.parametrize("argv", [["--nonsense"], ["--max-num-seq=4"], ["demo", "demo"], ["--port"], ["--config"]])
def test_a_wrong_command_line_is_refused(argv: list[str]) -> None:
    assert argv[0] in refusal("serve", *argv)


def test_serve_refuses_an_internal_option() -> None:
    assert "--parent-death-fd" in refusal("serve", "--parent-death-fd=3")


def test_serve_keeps_what_was_given_for_the_roles() -> None:
    options = parse("serve", ["demo", "--tokenizer-replicas=2", "--seed=3", "--served-model-name", "a", "b"])
    assert options == ServeOptions(
        tokenizer_replicas=2, role_values={"model": "demo", "seed": 3, "served_model_name": ("a", "b")}
    )


def test_flags_override_the_file(tmp_path: Path) -> None:
    text = "model: somewhere\nmax-model-len: 1k\nblock_size: 8\nenable-prefix-caching: false\nseed: null\n"
    options = from_file(tmp_path, text, "serve", "--max-model-len=64")
    assert options.role_values == {
        "model": "somewhere",
        "max_model_len": 64,
        "block_size": 8,
        "enable_prefix_caching": False,
    }


def test_a_file_may_have_lists_and_mappings(tmp_path: Path) -> None:
    text = "served-model-name: [a, b]\nhf-overrides: {rope_theta: 1.5, tie: true}\ngpu-memory-utilization: 0.5\n"
    assert from_file(tmp_path, text).role_values == {
        "served_model_name": ("a", "b"),
        "hf_overrides": {"rope_theta": 1.5, "tie": True},
        "gpu_memory_utilization": 0.5,
    }


def test_the_environment_overrides_the_file_and_a_flag_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", "from-environment")
    assert from_file(tmp_path, "api-key: from-file", "shim").api_key == ("from-environment",)
    assert from_file(tmp_path, "", "shim", "--api-key=from-flag").api_key == ("from-flag",)
    monkeypatch.delenv("TANDEM_API_KEY")
    assert from_file(tmp_path, "api-key: from-file", "shim").api_key == ("from-file",)


def test_the_key_of_vllms_environment_protects_this_server_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_API_KEY", raising=False)
    monkeypatch.setenv("VLLM_API_KEY", "of vllm")
    assert parse("serve", []).role_values["api_key"] == ("of vllm",)
    assert "VLLM_API_KEY" not in inherited_environment()
    monkeypatch.setenv("TANDEM_API_KEY", "own")
    assert parse("serve", []).role_values["api_key"] == ("own",)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_sets_nothing(tmp_path: Path, text: str) -> None:
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
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in file_refusal(tmp_path, text)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in refusal("serve", f"--config={tmp_path / 'none'}")
    assert str(tmp_path) in refusal("serve", f"--config={tmp_path}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    assert str(tmp_path / "binary") in refusal("serve", f"--config={tmp_path / 'binary'}")


def test_the_api_keys_are_passed_in_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"api_key": ("secret", "b c"), "admin_api_key": "admin", "host": "::1", "model": "demo"}
    variables = role_environment("shim", values)
    assert variables == {"TANDEM_API_KEY": "secret\nb c", "TANDEM_ADMIN_API_KEY": "admin"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = parse("shim", [])
    assert (found.api_key, found.admin_api_key) == (("secret", "b c"), "admin")
    monkeypatch.setenv("TANDEM_CACHE_ROOT_KEY", "the engine's")
    monkeypatch.setenv("TANDEM_CLUSTER_SECRET", "of every role")
    inherited = inherited_environment()
    assert not inherited.keys() & {*variables, "TANDEM_CACHE_ROOT_KEY"} and "TANDEM_CLUSTER_SECRET" in inherited
    assert role_environment("worker", values) == {}
    assert role_argv("shim", values) == ["--host=::1"]
    assert role_argv("engine", values) == []


@pytest.mark.parametrize(("text", "keys"), [("a", ("a",)), ("a\nb c\n", ("a", "b c")), ("\n\na\n", ("a",)), ("", None)])
def test_a_variable_has_one_key_a_line(
    text: str, keys: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", text)
    assert parse("shim", []).api_key == keys


def test_a_variable_without_a_key_does_not_open_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", "\n")
    assert refusal("shim").startswith("TANDEM_API_KEY: ")
    monkeypatch.setenv("TANDEM_API_KEY", "a\rb")
    assert refusal("shim") == "TANDEM_API_KEY: must be one line of printable characters"


def test_lists_of_vllm(tmp_path: Path) -> None:
    expected = ("https://a.example", "http://b:3000")
    assert parse("shim", ["--allowed-origins", '["https://a.example", "http://b:3000"]']).allowed_origins == expected
    assert from_file(tmp_path, f"allowed-origins: {list(expected)}", "shim").allowed_origins == expected
    assert "is not an origin" in refusal("shim", '--allowed-origins=["https://a/"]')
    assert "not a JSON list" in refusal("shim", "--allowed-hosts=a.example")


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


STRUCTURED = st.fixed_dictionaries(
    {}, optional={"disable_any_whitespace": st.booleans(), "max_whitespace": st.integers(1, 1000)}
)


def values_of(one: Setting) -> st.SearchStrategy[Any]:
    """Values that the declaration of a setting allows."""
    if one.choices:
        return st.sampled_from(one.choices)
    if one.positional:
        return TEXTS.filter(lambda text: not text.startswith("-"))
    if one.many or one.repeated:
        return st.lists(TEXTS, min_size=1).map(tuple)
    numbers = st.integers(int(one.low or 0), int(2**40 if one.high is None else one.high))
    by_parser: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXTS,
        int: numbers,
        integer: numbers,
        float: st.floats(one.low, one.high),
        boolean: st.booleans(),
        json_object: JSON,
        structured_outputs: STRUCTURED,
        host_and_port: PORTS,
        addresses: st.lists(PARTS, min_size=1).map(tuple),
        text_list: st.lists(TEXTS).map(tuple),
        origins: st.lists(st.sampled_from(["*", "null", "https://a.example", "http://b:80"])).map(tuple),
        path_prefix: st.text("abc-/", max_size=8).map("/a{}b".format).filter(lambda text: "//" not in text),
        named_addresses: st.lists(PORTS.map("engine={}".format), min_size=1).map(tuple),
    }
    return by_parser[one.parse]


def options_of(role: str) -> st.SearchStrategy[Any]:
    """Options of one role with any of its settings, without those that are passed in the environment."""
    kinds = ROLE_OPTIONS[role]
    some = {name: values_of(one) for name, one in settings_of(kinds).items() if not one.env}
    return st.fixed_dictionaries({}, optional=some).map(lambda values: kinds(**fitting(values))).filter(fit_together)


def fitting(values: dict[str, Any]) -> dict[str, Any]:
    """The values without options of TLS that need others which are not there."""
    without = {name for name in values if "ssl" in name and "ssl_certfile" not in values}
    without |= {"ssl_cert_reqs"} if "ssl_ca_certs" not in values else set()
    return {name: value for name, value in values.items() if name not in without}


def fit_together(options: Any) -> bool:
    if isinstance(options, ShimOptions):
        return not (options.allow_credentials and "*" in options.allowed_origins)
    return not isinstance(options, EngineOptions) or options.max_num_batched_tokens >= options.max_num_seqs


@pytest.mark.parametrize("role", ROLES)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_a_role_reads_back_what_the_launcher_writes(role: str, data: st.DataObject) -> None:
    options = data.draw(options_of(role))
    assert parse(role, role_argv(role, dataclasses.asdict(options))) == options


@settings(deadline=None, max_examples=50)
@given(values=JSON)
def test_overrides_keep_their_values(values: dict[str, Any]) -> None:
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
