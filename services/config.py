"""The only reader of flags, environment and configuration files. Everything else gets a frozen result.

Each setting is declared once, with default, range and one line of help; the flag comes from the declaration. Names are
those of `vllm serve` where the meaning is the same.
"""

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from services.settings import (
    Setting,
    UsageError,
    addresses,
    boolean,
    host_and_port,
    integer,
    json_object,
    named_addresses,
    setting,
)

DEMO_MODEL = "demo"
ROLES = ("shim", "tokenizer", "engine", "worker")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
QUEUED_REQS = 1024  # that wait, by default


_MODEL: dict[str, Any] = {"help": "Hugging Face repository id or local directory in that format", "positional": True}
_REVISION: dict[str, Any] = {"help": "branch, tag or commit of the hub repository"}


@dataclass(frozen=True)
class ProcessOptions:
    """What every process has."""

    log_level: str = setting("info", "the least that is logged", choices=LOG_LEVELS)
    log_format: str = setting("text", "log lines for people or for machines", choices=LOG_FORMATS)
    otlp_traces_endpoint: str | None = setting(
        None,
        "OTLP/gRPC URL that traces are sent to, for example http://localhost:4317; default: no traces",
        env=("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    )
    lifeline_fd: int | None = setting(
        None, "file descriptor whose end of file ends this process", parse=int, internal=True
    )


@dataclass(frozen=True)
class MonitoredOptions(ProcessOptions):
    """What every process has that serves no HTTP of its own: a port for /metrics and /health."""

    metrics_listen: str = setting(
        "127.0.0.1:0",
        "host:port of /metrics and /health; port 0 picks a free one",
        parse=host_and_port,
        internal=True,
    )
    metrics_fd: int | None = setting(
        None, "listening socket to use instead of --metrics-listen", parse=int, internal=True
    )


@dataclass(frozen=True)
class ShimOptions(ProcessOptions):
    """The HTTP front."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0 picks a free one", parse=int, low=0, high=65535)
    api_key: str | None = setting(None, "clients must send this as a bearer token", env=("TANDEM_API_KEY",))
    max_concurrent_requests: int = setting(
        4096, "HTTP requests under way at once, at most: more are refused", parse=integer, low=1
    )
    tokenizer: tuple[str, ...] = setting(
        ("127.0.0.1:8001",), "addresses of the tokenizers, comma-separated", parse=addresses, internal=True
    )
    metrics_peers: tuple[str, ...] = setting(
        (),
        "NAME=host:port, comma-separated, of the processes whose metrics /metrics shows as well",
        parse=named_addresses,
        internal=True,
    )
    listen_fd: int | None = setting(
        None, "listening socket to use instead of --host and --port", parse=int, internal=True
    )


@dataclass(frozen=True)
class TokenizerOptions(MonitoredOptions):
    """Text to token ids and back."""

    model: str = setting(DEMO_MODEL, **_MODEL)
    revision: str | None = setting(None, **_REVISION)
    chat_template: str | None = setting(
        None, "file with a chat template, or the template itself, to use instead of the model's"
    )
    listen: str = setting("127.0.0.1:8001", "address to listen on: host:port or unix:PATH", internal=True)
    engine: tuple[str, ...] = setting(
        ("127.0.0.1:8002",), "addresses of the engines, comma-separated", parse=addresses, internal=True
    )


@dataclass(frozen=True)
class EngineOptions(MonitoredOptions):
    """The scheduler and its KV cache."""

    max_num_seqs: int = setting(128, "requests that run at once", parse=integer, low=1, high=65536)
    max_num_batched_tokens: int = setting(2048, "tokens computed in one step, at most", parse=integer, low=1)
    max_num_queued_reqs: int | None = setting(
        None,
        f"requests that run or wait, at most: more are refused; default: {QUEUED_REQS} more than --max-num-seqs",
        parse=integer,
        low=1,
    )
    max_num_queued_tokens: int = setting(
        0,
        "prompt tokens of all requests that have no token yet, at most: more are refused; 0: no such limit",
        parse=integer,
        low=0,
    )
    long_prefill_token_threshold: int = setting(
        0, "tokens of one request in a step that it shares, at most; 0: no such limit", parse=integer, low=0
    )
    scheduling_policy: str = setting(
        "fcfs", "who goes first: who came first, or whose priority is lower", choices=("fcfs", "priority")
    )
    async_scheduling: bool = setting(True, "plan the next step while the last one runs", parse=boolean)
    step_timeout: float = setting(
        60.0, "seconds that every step may take before its worker counts as hung", parse=float, low=0.1, high=86400.0
    )
    enable_prefix_caching: bool = setting(True, "reuse the KV of prompts that begin alike", parse=boolean)
    flight_recorder_dir: str | None = setting(
        None, "directory for a record of the last steps, token ids and all, when the engine breaks or gets SIGUSR1"
    )
    seed: int | None = setting(
        None, "makes random what is not seeded by a request repeatable", parse=int, low=0, high=2**63 - 1
    )
    listen: str = setting("127.0.0.1:8002", "address to listen on: host:port or unix:PATH", internal=True)
    worker: str = setting("tcp://127.0.0.1:8003", "endpoint that the worker connects to", internal=True)


@dataclass(frozen=True)
class WorkerOptions(MonitoredOptions):
    """The model on its accelerator."""

    model: str = setting(DEMO_MODEL, **_MODEL)
    revision: str | None = setting(None, **_REVISION)
    served_model_name: tuple[str, ...] | None = setting(None, "names that requests may use; default: MODEL", many=True)
    device: str = setting("auto", "where the model runs", choices=("auto", "cpu", "cuda"))
    dtype: str = setting(
        "auto",
        "type of weights and KV; auto: the checkpoint's",
        choices=("auto", "float32", "float", "bfloat16", "float16", "half"),
    )
    batch_invariant: bool = setting(
        True, "give a request the same answer, to the bit, whatever else is computed with it", parse=boolean
    )
    cpu_threads: int | None = setting(
        None,
        "threads of the compiled kernels, CPU only; default: as many as this process may use cores",
        parse=int,
        low=1,
        high=1024,
    )
    quantization: str | None = setting(
        None,
        "keep the weights in eight bits each: int8, or on CUDA fp8 (e4m3); default: as the checkpoint has them",
        choices=("int8", "fp8"),
    )
    load_format: str = setting(
        "auto", "dummy: random weights, from config.json alone", choices=("auto", "safetensors", "dummy")
    )
    hf_overrides: Mapping[str, Any] | None = setting(None, "JSON object merged into config.json", parse=json_object)
    generation_config: str = setting(
        "auto", "sampling defaults: auto (the model's), vllm (OpenAI's), or a directory with generation_config.json"
    )
    max_model_len: int | None = setting(
        None, "prompt plus output, in tokens; default: what model and memory allow", parse=integer, low=1
    )
    block_size: int = setting(16, "tokens in one block of the KV cache", parse=int, low=1, high=1024)
    kv_cache_memory_bytes: int | None = setting(None, "size of the KV cache, for example 4G", parse=integer, low=1)
    gpu_memory_utilization: float | None = setting(
        None, "share of the GPU's memory to use, CUDA only; default 0.9", parse=float, low=0.01, high=1.0
    )
    seed: int | None = setting(None, "seed of --load-format dummy's weights", parse=int, low=0, high=2**63 - 1)
    engine: str = setting("tcp://127.0.0.1:8003", "endpoint of the engine", internal=True)


@dataclass(frozen=True)
class ServeOptions:
    """What only the launcher knows. `role_values` are the settings of the roles that were given, by name."""

    tokenizer_replicas: int = setting(1, "tokenizer processes", parse=int, low=1, high=64)
    runtime_dir: str | None = setting(None, "directory for the sockets between the processes; default: a new one")
    role_values: dict[str, Any] = field(default_factory=dict)


ROLE_OPTIONS: dict[str, type] = {
    "shim": ShimOptions,
    "tokenizer": TokenizerOptions,
    "engine": EngineOptions,
    "worker": WorkerOptions,
}


def settings_of(options: type) -> dict[str, Setting]:
    return {f.name: f.metadata["setting"] for f in dataclasses.fields(options) if "setting" in f.metadata}


def _serve_settings() -> dict[str, Setting]:
    """The launcher's own, and every setting of a role that is not internal."""
    merged = settings_of(ServeOptions)
    for role in ROLES:
        merged |= {name: one for name, one in settings_of(ROLE_OPTIONS[role]).items() if not one.internal}
    return merged


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _default_of(command: str, name: str) -> Any:
    classes = [ServeOptions, *ROLE_OPTIONS.values()] if command == "serve" else [ROLE_OPTIONS[command]]
    return next(f.default for c in classes for f in dataclasses.fields(c) if f.name == name)


def _build_parser(command: str, settings: dict[str, Setting]) -> _Parser:
    parser = _Parser(
        prog=f"tandem {command}",
        description="One model, four processes." if command == "serve" else ROLE_OPTIONS[command].__doc__,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with options, named as here; flags win over it")
    for name, one in settings.items():
        default = _default_of(command, name)
        text = one.help if default is None else f"{one.help} (default: {default})"
        if one.positional:
            parser.add_argument(name, nargs="?", metavar=name.upper(), help=text)
        elif one.parse is boolean:
            parser.add_argument(_flag(name), action=argparse.BooleanOptionalAction, help=one.help)
        elif one.many:
            parser.add_argument(_flag(name), action="extend", nargs="+", help=text, metavar="NAME")
        else:
            parser.add_argument(_flag(name), help=text, metavar="|".join(one.choices) or name.upper())
    return parser


def _convert(one: Setting, name: str, raw: Any) -> Any:
    """`raw` is a string from the command line, or whatever YAML made of the file: 0123 is 83 there, and no is False."""
    if one.many and isinstance(raw, list) and raw:
        return tuple(_convert_one(one, name, part) for part in raw)
    value = _convert_one(one, name, raw)
    return (value,) if one.many else value


def _convert_one(one: Setting, name: str, raw: Any) -> Any:
    if one.parse is str and not isinstance(raw, str):
        raise UsageError(f"{name}: {raw!r} is not a string; write it in quotes")
    return one.convert(name, raw if isinstance(raw, str) else json.dumps(raw, default=str))


def _read_file(path: str, settings: dict[str, Setting]) -> dict[str, Any]:
    import yaml  # only with --config: `tandem --help` must answer at once

    try:
        content = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config {path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UsageError(f"--config {path}: not a mapping of options")
    values = {str(key).replace("-", "_"): value for key, value in content.items()}
    unknown = sorted(values.keys() - settings.keys())
    if unknown:
        raise UsageError(f"--config {path}: unknown option {unknown[0]!r}")
    return values


def parse(command: str, argv: list[str]) -> Any:
    """The frozen options of one command: flags over environment over --config over defaults. Raises UsageError."""
    options = ServeOptions if command == "serve" else ROLE_OPTIONS[command]
    settings = _serve_settings() if command == "serve" else settings_of(options)
    given = vars(_build_parser(command, settings).parse_args(argv))
    values = _read_file(given.pop("config"), settings) if "config" in given else {}
    for name, one in settings.items():
        if given_here := [os.environ[env] for env in one.env if os.environ.get(env)]:
            values[name] = given_here[0]
    values |= given
    converted = {
        name: _convert(settings[name], name.upper() if settings[name].positional else _flag(name), raw)
        for name, raw in values.items()
        if raw is not None
    }
    _check_together(converted)
    if command != "serve":
        return options(**converted)
    own = settings_of(ServeOptions).keys()
    return ServeOptions(
        **{name: value for name, value in converted.items() if name in own},
        role_values={name: value for name, value in converted.items() if name not in own},
    )


def _check_together(values: dict[str, Any]) -> None:
    """What is right by itself, but not beside another option. Raises UsageError."""
    num_seqs = values.get("max_num_seqs", EngineOptions.max_num_seqs)
    num_tokens = values.get("max_num_batched_tokens", EngineOptions.max_num_batched_tokens)
    if num_tokens < num_seqs:
        raise UsageError(
            f"--max-num-batched-tokens is {num_tokens}, but must be at least --max-num-seqs, {num_seqs}:"
            " some running request would never get its turn"
        )


def role_argv(role: str, values: dict[str, Any]) -> list[str]:
    """The command line of one role, from values by name; those that are not this role's are left out.

    Values that have an environment variable are left to it: a secret does not belong on a command line.
    """
    argv: list[str] = []
    positional: list[str] = []
    for name, one in settings_of(ROLE_OPTIONS[role]).items():
        value = values.get(name)
        if value is None or one.env:
            continue
        if one.positional:
            positional = [str(value)]
        elif isinstance(value, bool):
            argv.append(_flag(name) if value else _flag("no_" + name))
        elif one.many:
            argv += [f"{_flag(name)}={part}" for part in value]
        else:
            argv.append(f"{_flag(name)}={_as_text(value)}")
    return [*positional, *argv]


def role_environment(role: str, values: dict[str, Any]) -> dict[str, str]:
    """The values of one role that travel in the environment."""
    found = {one.env[0]: values.get(name) for name, one in settings_of(ROLE_OPTIONS[role]).items() if one.env}
    return {env: str(value) for env, value in found.items() if value is not None}


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return json.dumps(value) if isinstance(value, dict) else str(value)
