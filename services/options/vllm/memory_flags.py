"""The flags about the KV cache, memory and the scheduler. Source: CacheConfig, OffloadConfig and SchedulerConfig in
vllm/engine/arg_utils.py.

Rows only: services/options/vllm/flag.py says what they mean.
"""

from services.options.vllm.flag import (
    COUNT,
    NUMBER,
    SWITCH,
    TEXT,
    TEXTS,
    WHOLE,
    Flag,
    at_least,
    lacks,
    one_of,
    other,
    same,
    unused,
)

_KV = "the KV cache has the model's data type (auto); a quantised KV cache is not supported yet"
_OFFLOAD = "weights in the host's memory (offloading) are not supported yet"
_KV_OFFLOAD = "a KV cache in the host's memory (offloading) is not supported yet"
_STATE = "it is about models with state layers (Mamba), which are not served yet"
_ORDER = "the scheduler shares each step by its own rule"

CACHE: tuple[Flag, ...] = (
    same("block-size"),
    same("gpu-memory-utilization", "on CUDA only; 0.9 by default"),
    same("kv-cache-memory-bytes"),
    same("enable-prefix-caching"),
    other("num-gpu-blocks-override", at_least(1), "use --kv-cache-memory-bytes"),
    lacks("kv-cache-dtype", TEXT, _KV, ("auto",)),
    unused("kv-cache-dtype-skip-layers", TEXTS, "the KV cache has the model's data type"),
    unused("calculate-kv-scales", SWITCH, "the KV cache has the model's data type"),
    unused("prefix-caching-hash-algo", TEXT, "blocks are always hashed by SHA-256"),
    unused("prefix-cache-retention-interval", WHOLE, "blocks are kept while there is room"),
    unused("prefix-match-unit", WHOLE, "prefixes match by blocks"),
    unused("kv-sharing-fast-prefill", SWITCH, "no served model shares its KV cache between layers"),
    lacks("kv-offloading-size", at_least(0, float), _KV_OFFLOAD, (0.0,)),
    unused("kv-offloading-backend", TEXT, "it tunes --kv-offloading-size"),
    unused("mamba-cache-dtype", TEXT, _STATE),
    unused("mamba-ssm-cache-dtype", TEXT, _STATE),
    unused("mamba-block-size", WHOLE, _STATE),
    unused("mamba-cache-mode", TEXT, _STATE),
    unused("replayssm-buffer-len", WHOLE, _STATE),
    unused("use-replayssm", SWITCH, _STATE),
)

OFFLOADING: tuple[Flag, ...] = (
    lacks("cpu-offload-gb", at_least(0, float), _OFFLOAD, (0.0,)),
    lacks("offload-group-size", at_least(0), _OFFLOAD, (0,)),
    unused("offload-backend", TEXT, "it tunes --cpu-offload-gb"),
    unused("cpu-offload-params", TEXTS, "it tunes --cpu-offload-gb"),
    unused("offload-num-in-group", WHOLE, "it tunes --offload-group-size"),
    unused("offload-prefetch-step", WHOLE, "it tunes --offload-group-size"),
    unused("offload-params", TEXTS, "it tunes --offload-group-size"),
)

SCHEDULER: tuple[Flag, ...] = (
    same("max-num-seqs", "128 by default"),
    same("max-num-batched-tokens", "2048 by default"),
    same("max-num-queued-reqs", "429 beyond it"),
    same("max-num-queued-tokens", "429 beyond it"),
    same("long-prefill-token-threshold"),
    same("scheduling-policy"),
    same("async-scheduling"),
    unused("max-num-scheduled-tokens", COUNT, "--max-num-batched-tokens bounds a step"),
    unused("enable-chunked-prefill", SWITCH, "a prompt always takes the tokens of a step that are left"),
    unused("max-num-partial-prefills", at_least(1), _ORDER),
    unused("max-long-partial-prefills", at_least(1), _ORDER),
    unused("disable-chunked-mm-input", SWITCH, "text is the only input"),
    unused("scheduler-reserve-full-isl", SWITCH, _ORDER),
    unused("watermark", NUMBER, _ORDER),
    unused("prefill-schedule-interval", WHOLE, _ORDER),
    unused("disable-hybrid-kv-cache-manager", SWITCH, "the KV cache follows the model's layers"),
    lacks("scheduler-cls", TEXT, "Python code from outside is not loaded"),
    lacks(
        "stream-interval", at_least(1), "chunks of several tokens are not supported: each token is sent at once", (1,)
    ),
)

MAMBA: tuple[Flag, ...] = (
    unused("mamba-backend", TEXT, _STATE),
    unused("mamba-ssu-algorithm", TEXT, _STATE),
    unused("enable-mamba-cache-stochastic-rounding", SWITCH, _STATE),
    unused("mamba-cache-philox-rounds", WHOLE, _STATE),
    unused("gdn-prefill-backend", one_of("flashinfer", "triton", "cutedsl"), _STATE),
    unused("kda-prefill-backend", one_of("auto", "triton", "flashkda"), _STATE),
)
