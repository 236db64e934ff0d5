"""The declared options of the roles: their ranges, choices and parsers."""

from typing import Any

import pytest

from services.options.command_line import parse
from services.options.declarations import ROLE_OPTIONS, ROLES, EngineOptions, settings_of
from services.options.setting import integer
from services.options.tools import TOOL_OPTIONS
from tests.options.test_command_line import refusal

NUMBERS: tuple[Any, ...] = (int, float, integer)


@pytest.mark.parametrize(
    ("command", "flag", "value", "limit"),
    [
        ("shim", "--port", "65536", "from 0 to 65535"),
        ("shim", "--port", "-1", "from 0 to 65535"),
        ("shim", "--grpc-port", "65536", "from 0 to 65535"),
        ("shim", "--max-concurrent-requests", "0", "at least 1"),
        ("engine", "--max-num-seqs", "0", "from 1 to 65536"),
        ("engine", "--max-num-batched-tokens", "0", "at least 1"),
        ("engine", "--max-num-queued-reqs", "0", "at least 1"),
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
def test_a_value_out_of_range_is_refused_with_option_and_limit(command: str, flag: str, value: str, limit: str) -> None:
    assert refusal(command, f"{flag}={value}").startswith(f"{flag}: {value} must be {limit}")


def test_every_number_has_a_lower_limit() -> None:
    """But for file descriptors, which the launcher passes."""
    for role in ROLES:
        numbers = {name: one for name, one in settings_of(ROLE_OPTIONS[role]).items() if one.parse in NUMBERS}
        assert [name for name, one in numbers.items() if one.low is None and not name.endswith("_fd")] == []


@pytest.mark.parametrize(
    ("flag", "value"), [("--device", "tpu"), ("--dtype", "int8"), ("--load-format", "pickle"), ("--dtype", "")]
)
def test_a_value_that_is_no_choice_is_refused_with_the_choices(flag: str, value: str) -> None:
    message = refusal("worker", f"{flag}={value}")
    choices = settings_of(ROLE_OPTIONS["worker"])[flag[2:].replace("-", "_")].choices
    assert message == f"{flag}: {value!r} is not one of {', '.join(choices)}"


def test_every_default_is_one_of_the_choices() -> None:
    for options in (*ROLE_OPTIONS.values(), *TOOL_OPTIONS.values()):
        for name, one in settings_of(options).items():
            default = getattr(options, name)
            assert not one.choices or default is None or default in one.choices, name


@pytest.mark.parametrize(
    "argv", [["--api-key="], ["--host="], [""], ["--served-model-name", "a", ""], ["--chat-template", ""]]
)
def test_an_empty_text_is_refused(argv: list[str]) -> None:
    """An empty key would leave the server open."""
    assert refusal("serve", *argv).endswith(": must not be empty")


@pytest.mark.parametrize("command", ["serve", "engine"])
def test_a_step_must_have_a_token_for_every_running_request(command: str) -> None:
    assert EngineOptions.max_num_seqs == 128
    assert "must be at least --max-num-seqs, 128" in refusal(command, "--max-num-batched-tokens=64")
    assert "must be at least --max-num-seqs, 4096" in refusal(command, "--max-num-seqs=4096")


@pytest.mark.parametrize("text", ["1k", "1K"])
@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("engine", "max_num_queued_tokens"),
        ("engine", "max_num_queued_reqs"),
        ("engine", "long_prefill_token_threshold"),
        ("worker", "max_model_len"),
        ("worker", "kv_cache_memory_bytes"),
        ("shim", "max_concurrent_requests"),
    ],
)
def test_sizes_may_have_a_unit(role: str, name: str, text: str) -> None:
    value = getattr(parse(role, [f"--{name.replace('_', '-')}={text}"]), name)
    assert value == {"1k": 1000, "1K": 1024}[text]


@pytest.mark.parametrize("text", ["{", "[1]", "7", "null", ""])
def test_overrides_must_be_a_json_object(text: str) -> None:
    assert refusal("worker", f"--hf-overrides={text}").startswith("--hf-overrides:")


@pytest.mark.parametrize("address", ["::1", "::1:0", "fe80::1:80", "host", "host:http"])
def test_a_metrics_address_must_be_host_and_port(address: str) -> None:
    assert refusal("worker", f"--metrics-listen={address}").startswith(f"--metrics-listen: {address!r} is not valid")


def test_credentials_need_named_origins() -> None:
    """With every origin, each page would act with its visitor's certificates."""
    message = refusal("serve", "--allow-credentials", '--allowed-origins=["*"]')
    assert message.startswith("--allow-credentials is refused with --allowed-origins")
    options = parse("shim", ["--allow-credentials", '--allowed-origins=["https://a"]'])
    assert (options.allow_credentials, options.allowed_origins) == (True, ("https://a",))


def test_a_model_behind_a_key_is_no_key() -> None:
    """vLLM takes every word behind --api-key as a key, so that the model's name would open the server."""
    assert parse("serve", ["--api-key", "a", "demo"]).role_values == {"api_key": ("a",), "model": "demo"}
    assert parse("shim", ["--api-key=a", "--api-key", "b"]).api_key == ("a", "b")
