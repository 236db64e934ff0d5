"""The settings of every process, each declared once: default, range and one line of help. Knows no parser.

Flags, help and the keys of a configuration file come from these declarations (services/options/command_line.py).
Names are those of `vllm serve` where the meaning is the same.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.options.setting import (
    Setting,
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
CPU_KERNELS = ("amx", "avx512bf16", "avx2", "portable")  # kernels/cpu/library.py, which this must not import
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
class SecretOptions:
    """The secret that authenticates the processes of a deployment to each other."""

    cluster_secret_file: str | None = setting(
        None,
        "file with the secret that all processes of a deployment share, 32 bytes or more: needed where they talk over"
        " TCP; TANDEM_CLUSTER_SECRET has the secret itself",
        internal=True,
        env=("TANDEM_CLUSTER_SECRET_FILE",),
    )
    cluster_secret: str | None = setting(
        None, "the secret itself", internal=True, env=("TANDEM_CLUSTER_SECRET",), in_environment_only=True
    )


@dataclass(frozen=True)
class ClusterOptions(ProcessOptions, SecretOptions):
    """What every role has."""

    metrics_token_file: str | None = setting(
        None,
        "file with the bearer token that /metrics of the processes behind the shim asks for; default: where other"
        " machines can reach it, one that follows from the secret",
        internal=True,
    )


@dataclass(frozen=True)
class MetricsOptions(ClusterOptions):
    """What every process has that serves no HTTP of its own: a port for /metrics and /health."""

    metrics_listen: str | None = setting(
        None,
        "host:port of /metrics and /health; port 0 picks a free one; default: a free one on the loopback address",
        parse=host_and_port,
        internal=True,
    )
    metrics_fd: int | None = setting(
        None, "listening socket to use instead of --metrics-listen", parse=int, internal=True
    )


@dataclass(frozen=True)
class ShimOptions(ClusterOptions):
    """The HTTP front."""

    host: str | None = setting(
        None, "address to listen on; default: 127.0.0.1, or ::1 where the loopback device has no IPv4 address"
    )
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
class TokenizerOptions(MetricsOptions):
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
class EngineOptions(MetricsOptions):
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
class WorkerOptions(MetricsOptions):
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
    cpu_kernels: str | None = setting(
        None,
        "instruction set of the compiled kernels, CPU only; default: the fastest that this machine runs",
        choices=CPU_KERNELS,
        env=("TANDEM_CPU_KERNELS",),
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


@dataclass(frozen=True)
class NewSecretOptions:
    """Makes a secret for the processes of one deployment, unless the file is there."""

    out: str = setting("", "file to write it to", required=True)


@dataclass(frozen=True)
class CredentialsOptions(SecretOptions):
    """Writes down, for other programs, what the secret gives: ca.pem, certificate.pem and key.pem for gRPC, and
    metrics-token."""

    out: str = setting("", "directory to write them to", required=True)


TOOL_OPTIONS: dict[str, type] = {"new-secret": NewSecretOptions, "internal-credentials": CredentialsOptions}
ROLE_OPTIONS: dict[str, type] = {
    "shim": ShimOptions,
    "tokenizer": TokenizerOptions,
    "engine": EngineOptions,
    "worker": WorkerOptions,
}


def settings_of(options: type) -> dict[str, Setting]:
    return {f.name: f.metadata["setting"] for f in dataclasses.fields(options) if "setting" in f.metadata}
