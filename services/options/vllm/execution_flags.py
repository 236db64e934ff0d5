"""The flags about kernels, compilation, speculation, metrics and traces. Source: the other config groups in
vllm/engine/arg_utils.py.

Rows only: services/options/vllm/flag.py says what they mean.
"""

from services.options.setting import Setting
from services.options.vllm.flag import (
    JSON,
    NUMBER,
    OBJECT,
    SWITCH,
    TEXT,
    TEXTS,
    WHOLE,
    WHOLES,
    Flag,
    at_least,
    lacks,
    one_of,
    other,
    same,
    unused,
)

_KERNELS = "tandem has its own kernels; which run changes no answer"
_COMPILATION = "how the model is executed changes no answer"
_SPECULATION = "speculative decoding is not supported yet"
_TRANSFER = "moving the KV cache between servers (prefill and decode apart) is not supported yet"
_METRICS = "these metrics are not supported yet"
_PROFILING = "it is about vLLM's own profiling"

EXECUTION: tuple[Flag, ...] = (
    unused("attention-backend", TEXT, _KERNELS),
    unused("attention-config", OBJECT, _KERNELS, short=("-ac",)),
    unused("moe-backend", TEXT, _KERNELS),
    unused("linear-backend", TEXT, _KERNELS),
    unused("kernel-config", OBJECT, _KERNELS),
    unused("ir-op-priority", OBJECT, _KERNELS),
    unused("enable-flashinfer-autotune", SWITCH, _KERNELS),
    unused("enable-bf16x3-router-gemm", SWITCH, _KERNELS),
    unused("compilation-config", JSON, _COMPILATION, short=("-cc",)),
    unused("optimization-level", Setting("", parse=int, low=0, high=3), _COMPILATION, short=("-O",)),
    unused("performance-mode", one_of("balanced", "interactivity", "throughput"), _COMPILATION),
    unused("cudagraph-capture-sizes", WHOLES, _COMPILATION),
    unused("max-cudagraph-capture-size", WHOLE, _COMPILATION),
    lacks("speculative-config", OBJECT, _SPECULATION, short=("-sc",)),
    lacks("spec-method", TEXT, _SPECULATION),
    lacks("spec-model", TEXT, _SPECULATION),
    lacks("spec-tokens", at_least(0), _SPECULATION, (0,)),
    lacks("diffusion-config", OBJECT, "diffusion models are not supported", short=("-dc",)),
    lacks("kv-transfer-config", OBJECT, _TRANSFER),
    lacks("ec-transfer-config", OBJECT, "images, audio and video in prompts are not supported yet"),
    unused("ec-manager-config", OBJECT, "text is the only input"),
    lacks("kv-events-config", JSON, "events about the KV cache are not supported yet"),
    lacks("weight-transfer-config", OBJECT, "new weights for a running server are not supported yet"),
    lacks("additional-config", OBJECT, "settings of vLLM's hardware plugins are unknown here", ({},)),
)

FORMATS: tuple[Flag, ...] = (
    same("structured-outputs-config", "backend auto or guidance; max_whitespace is tandem's own"),
    same("reasoning-parser", "not needed: the format is found by the model's files"),
    other("reasoning-parser-plugin", TEXT, "use --tool-parser-plugin: a table describes reasoning, too"),
    unused("reasoning-config", OBJECT, "the markers of reasoning are those of --reasoning-parser"),
)

OBSERVABILITY: tuple[Flag, ...] = (
    same("otlp-traces-endpoint", "OTLP over gRPC"),
    unused("collect-detailed-traces", TEXTS, "traces have a span per process"),
    unused("jit-monitor-mode", one_of("warn", "error"), _PROFILING),
    unused("jit-monitor-verbose", SWITCH, _PROFILING),
    unused("enable-layerwise-nvtx-tracing", SWITCH, _PROFILING),
    unused("enable-logging-iteration-details", SWITCH, "--flight-recorder-dir records steps"),
    unused("kv-cache-metrics-sample", NUMBER, "it tunes --kv-cache-metrics"),
    lacks("kv-cache-metrics", SWITCH, _METRICS),
    lacks("cudagraph-metrics", SWITCH, _METRICS),
    lacks("enable-mfu-metrics", SWITCH, _METRICS),
    lacks("show-hidden-metrics-for-version", TEXT, _METRICS),
    lacks("per-request-spec-decode-metrics", one_of("none", "summary", "detailed"), _SPECULATION, ("none",)),
    lacks("profiler-config", OBJECT, "profiling on request is not supported yet", ({},)),
)
