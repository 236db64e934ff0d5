"""The settings of each role, declared once: default, range and one line of help. Knows no parser.

Flags, help, the keys of a configuration file (services/options/command_line.py) and docs/serving.md come from these
declarations. Names are those of `vllm serve` where the meaning is the same. What several roles have is in
services/options/common.py, who may ask the shim in access.py, what the tools have in tools.py.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.options.access import AccessOptions
from services.options.common import (
    ClusterOptions,
    GrpcOptions,
    ListenOptions,
    ModelOptions,
    RecoveryOptions,
    SpareOptions,
)
from services.options.http import HttpOptions
from services.options.setting import (
    Setting,
    addresses,
    boolean,
    integer,
    json_object,
    named_addresses,
    setting,
)
from services.options.tokenizer import TokenizerOptions

ROLES = ("shim", "tokenizer", "engine", "worker")
CPU_KERNELS = ("amx", "avx512bf16", "avx2", "portable")  # as in kernels/cpu/library.py, which this must not import
QUEUED_REQS = 1024  # requests that may wait, by default


_SEED: dict[str, Any] = {
    "help": "engine: seed for requests without a seed; worker: seed for the weights of --load-format dummy",
    "unset": "random; 0 for weights",
    "parse": int,
    "low": 0,
    "high": 2**63 - 1,
}


@dataclass(frozen=True)
class ShimOptions(HttpOptions, AccessOptions, GrpcOptions, RecoveryOptions, ClusterOptions):
    """The HTTP server of the OpenAI API."""

    host: str | None = setting(
        None,
        "address to listen on; ::1 is the default only if the loopback device has no IPv4 address",
        unset="127.0.0.1 or ::1",
    )
    port: int = setting(8000, "port to listen on; 0 picks a free one", parse=int, low=0, high=65535)
    grpc_port: int | None = setting(
        None,
        "port of a gRPC server for gateways, which speaks vLLM's engine protocol; 0 picks a free one; needs the extra"
        " [grpc]",
        unset="no such server",
        parse=int,
        low=0,
        high=65535,
    )
    grpc_host: str | None = setting(
        None, "address of the gRPC server for gateways; --host has no effect on it", unset="127.0.0.1 or ::1"
    )
    grpc_no_key: bool = setting(
        False,
        "gateways need no key although the server has one; refused if --grpc-host is the address of all interfaces",
        parse=boolean,
    )
    max_concurrent_requests: int = setting(
        4096, "maximum number of concurrent API requests; more get HTTP status 429", parse=integer, low=1
    )
    max_request_body_bytes: int = setting(
        64 * 2**20,
        "maximum size of the body of a request for text, in bytes, for example 8M; a larger one gets HTTP status 413",
        parse=integer,
        low=1024,
        high=2**30,
    )
    max_logprob_entries: int = setting(
        4_000_000,
        "maximum number of logprobs in the answer to one request: choices x tokens x (1 + top logprobs), and tokens of"
        " the prompts x (1 + prompt logprobs); a request for more gets HTTP status 400",
        parse=integer,
        low=1,
    )
    response_role: str = setting("assistant", "role of the messages that chat completions return")
    ignore_unknown_fields: bool = setting(
        False, "requests may have unknown fields, which have no effect; false: they get HTTP status 400", parse=boolean
    )
    enable_request_id_headers: bool = setting(
        False, "responses have the header X-Request-Id: the request's own, or a random one", parse=boolean
    )
    enable_force_include_usage: bool = setting(
        False,
        "every stream has the token counts, in each chunk and at its end, as if the request asked for them",
        parse=boolean,
    )
    enable_prompt_tokens_details: bool = setting(
        True, "usage has the number of prompt tokens that the prefix cache held", parse=boolean
    )
    exclude_tools_when_tool_choice_none: bool = setting(
        False,
        "the prompt has no tools if a request has `tool_choice: none`; false: the model sees them all the same",
        parse=boolean,
    )
    enable_auto_tool_choice: bool = setting(
        False,
        "no effect, for command lines of vLLM: tools with `tool_choice: auto` work wherever the model's format is"
        " known",
        parse=boolean,
    )
    tokenizer: tuple[str, ...] = setting(
        ("127.0.0.1:8001",), "addresses of the tokenizers, comma-separated", parse=addresses, internal=True
    )
    metrics_peers: tuple[str, ...] = setting(
        (),
        "metrics servers that /metrics scrapes and includes, as NAME=host:port, comma-separated",
        unset="none",
        parse=named_addresses,
        internal=True,
    )
    listen_fd: int | None = setting(
        None, "listening socket to use instead of --host and --port or --uds", unset="none", parse=int, internal=True
    )
    ready_fd: int | None = setting(
        None,
        "file descriptor of a pipe; the shim writes a byte to it once it is ready",
        unset="none",
        parse=int,
        internal=True,
    )


@dataclass(frozen=True)
class EngineOptions(GrpcOptions, RecoveryOptions, ListenOptions):
    """The scheduler and its KV cache."""

    max_num_seqs: int = setting(
        128, "maximum number of running requests; each choice of a request counts", parse=integer, low=1, high=65536
    )
    max_num_batched_tokens: int = setting(2048, "maximum number of tokens computed in one step", parse=integer, low=1)
    max_num_queued_reqs: int | None = setting(
        None,
        "maximum number of running and waiting requests, counted likewise; more get HTTP status 429",
        unset=f"--max-num-seqs + {QUEUED_REQS}",
        parse=integer,
        low=1,
    )
    max_num_queued_tokens: int = setting(
        0,
        "maximum number of prompt tokens of all requests without an output token; more get HTTP status 429;"
        " 0: no limit",
        parse=integer,
        low=0,
    )
    long_prefill_token_threshold: int = setting(
        0,
        "maximum number of tokens of one request in a step while other requests run or wait; 0: no limit",
        parse=integer,
        low=0,
    )
    scheduling_policy: str = setting(
        "fcfs",
        "order of requests: by arrival (fcfs), or by their `priority`, lowest first",
        choices=("fcfs", "priority"),
    )
    async_scheduling: bool = setting(True, "plan the next step while the last one runs", parse=boolean)
    step_timeout: float = setting(
        60.0,
        "seconds that a step may take before its worker counts as hung and is restarted; long steps, and the first"
        " steps of a worker, get more",
        parse=float,
        low=0.1,
        high=86400.0,
    )
    enable_prefix_caching: bool = setting(
        True, "reuse the KV blocks of prompts that start with the same tokens", parse=boolean
    )
    flight_recorder_dir: str | None = setting(
        None,
        "directory for a recording of the last steps, written when the engine fails or receives SIGUSR1; it contains"
        " prompts and answers as token ids",
        unset="no recording",
    )
    seed: int | None = setting(None, **_SEED)
    cache_root_key: str | None = setting(
        None,
        "secret of at least 32 bytes from which the hashes of cached prefixes start; with a secret of the deployment it"
        " is derived from that",
        unset="a random one",
        internal=True,
        env=("TANDEM_CACHE_ROOT_KEY",),
        in_environment_only=True,
        secret=True,
    )
    listen: str = setting("127.0.0.1:8002", "address to listen on: host:port or unix:PATH", internal=True)
    worker: str = setting("tcp://127.0.0.1:8003", "ZeroMQ endpoint that the worker connects to", internal=True)


@dataclass(frozen=True)
class WorkerOptions(SpareOptions, ModelOptions):
    """The model on its accelerator."""

    served_model_name: tuple[str, ...] | None = setting(
        None, "one or more names that requests may use for the model", unset="MODEL", many=True
    )
    device: str = setting("auto", "device of the model", choices=("auto", "cpu", "cuda"))
    dtype: str = setting(
        "auto",
        "data type of weights and KV cache; auto: the checkpoint's",
        choices=("auto", "float32", "float", "bfloat16", "float16", "half"),
    )
    batch_invariant: bool = setting(True, "compute the same bits for a request in any batch", parse=boolean)
    cpu_threads: int | None = setting(
        None,
        "threads of the compiled kernels, CPU only",
        unset="the cores that this process may use",
        parse=int,
        low=1,
        high=1024,
    )
    cpu_kernels: str | None = setting(
        None,
        "instruction set of the compiled kernels, CPU only",
        unset="the fastest that this machine runs",
        choices=CPU_KERNELS,
        env=("TANDEM_CPU_KERNELS",),
    )
    quantization: str | None = setting(
        None,
        "quantize the weights to 8 bits on load: int8, or on CUDA also fp8 (e4m3); not with --no-batch-invariant",
        unset="as the checkpoint",
        choices=("int8", "fp8"),
    )
    load_format: str = setting(
        "auto",
        "format of the weights; dummy: random weights, made from config.json alone",
        choices=("auto", "safetensors", "dummy"),
    )
    verify_weights: bool = setting(
        False,
        "hash every byte of the weight files at each load, and refuse files that are not those of the first load;"
        " false: their sizes and samples",
        parse=boolean,
    )
    hf_overrides: Mapping[str, Any] | None = setting(
        None, "JSON object that is merged into config.json", unset="none", parse=json_object
    )
    generation_config: str = setting(
        "auto",
        "sampling defaults: auto (the model's), vllm (the OpenAI API's), or a directory with generation_config.json",
    )
    override_generation_config: Mapping[str, Any] | None = setting(
        None,
        'JSON object that is merged into the generation config, for example {"temperature": 0.6}',
        unset="none",
        parse=json_object,
    )
    max_logprobs: int = setting(
        20, "maximum number of top logprobs per token; -1: the size of the vocabulary", parse=int, low=-1
    )
    max_model_len: int | None = setting(
        None,
        "maximum number of tokens of prompt and output together",
        unset="what model and memory allow",
        parse=integer,
        low=1,
    )
    block_size: int = setting(16, "tokens per block of the KV cache", parse=int, low=1, high=1024)
    kv_cache_memory_bytes: int | None = setting(
        None,
        "size of the KV cache in bytes, for example 4G; by default a share of the memory that weights and the largest"
        " step leave: half of it on a CPU, all of it on a GPU",
        unset="half or all",
        parse=integer,
        low=1,
    )
    gpu_memory_utilization: float | None = setting(
        None,
        "share of the GPU's memory for weights, steps and KV cache, CUDA only",
        unset="0.9",
        parse=float,
        low=0.01,
        high=1.0,
    )
    seed: int | None = setting(None, **_SEED)
    engine: str = setting("tcp://127.0.0.1:8003", "ZeroMQ endpoint of the engine", internal=True)
    record_fd: int | None = setting(
        None,
        "file descriptor of what the launcher remembers of the workers before this one",
        unset="none",
        parse=int,
        internal=True,
    )


@dataclass(frozen=True)
class ServeOptions:
    """Options of `tandem serve`: the launcher's own. `role_values`: the given settings of the roles, by name.
    `without_effect`: flags of vLLM that were given and change nothing here."""

    tokenizer_replicas: int = setting(1, "number of tokenizer processes", parse=int, low=1, high=64)
    runtime_dir: str | None = setting(
        None, "directory of the Unix sockets between the processes", unset="a new one, removed at the end"
    )
    spare_processes: bool = setting(
        True,
        "keep one more process of tokenizer, engine and worker (this one without weights), which takes over when one"
        " ends; false: a new one is started then",
        parse=boolean,
    )
    role_values: dict[str, Any] = field(default_factory=dict)
    without_effect: tuple[str, ...] = ()


ROLE_OPTIONS: dict[str, type] = {
    "shim": ShimOptions,
    "tokenizer": TokenizerOptions,
    "engine": EngineOptions,
    "worker": WorkerOptions,
}


def settings_of(options: type) -> dict[str, Setting]:
    """Returns the settings of an options class by name, inherited ones first. Fields without a Setting are left out."""
    return {f.name: f.metadata["setting"] for f in dataclasses.fields(options) if "setting" in f.metadata}
