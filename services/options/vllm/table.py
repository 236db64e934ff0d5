"""The table of vLLM's flags: every flag of `vllm serve`, by the groups of its help, and what becomes of it here.

Source: vllm/engine/arg_utils.py and vllm/entrypoints/launchers/cli_args.py of the version below.
"""

from services.options.vllm.execution_flags import EXECUTION, FORMATS, OBSERVABILITY
from services.options.vllm.flag import Flag
from services.options.vllm.input_flags import LORA, MEDIA
from services.options.vllm.memory_flags import CACHE, MAMBA, OFFLOADING, SCHEDULER
from services.options.vllm.model_flags import LOADING, MODEL
from services.options.vllm.older_flags import OLDER
from services.options.vllm.parallel_flags import PARALLEL
from services.options.vllm.server_flags import SERVER

VERSION = "0.33"
GROUPS: dict[str, tuple[Flag, ...]] = {
    "Server and logs": SERVER,
    "Model": MODEL,
    "Loading weights": LOADING,
    "Tool calls, reasoning, structured outputs": FORMATS,
    "Scheduler": SCHEDULER,
    "KV cache": CACHE,
    "Weights in the host's memory": OFFLOADING,
    "Several devices and machines": PARALLEL,
    "Kernels, compilation, speculation, transfers": EXECUTION,
    "Media in prompts": MEDIA,
    "LoRA": LORA,
    "State layers": MAMBA,
    "Metrics and traces": OBSERVABILITY,
    "Of older versions": OLDER,
}
FLAGS: dict[str, Flag] = {flag.name: flag for flags in GROUPS.values() for flag in flags}
SHORT: dict[str, str] = {short: f"--{flag.name}" for flag in FLAGS.values() for short in flag.short}
SEVERAL: frozenset[str] = frozenset(f"--{flag.name}" for flag in FLAGS.values() if flag.several)
