"""What /server_info says: the model, its limits and sampling defaults, and options that clients feel.

The options are named one by one: keys, secrets, and paths of files that hold some must never be among them.
"""

from typing import Any

from typing_extensions import TypedDict

from services.options.declarations import ShimOptions
from services.rpc.generated import common_pb2 as pb
from services.shim.apis.numbers import as_written
from services.version import VERSION

Json = dict[str, Any]
FORMATS = ("json", "text")  # of vllm_config; vLLM's default is text
SHOWN_OPTIONS = (
    "max_request_body_bytes",
    "max_concurrent_requests",
    "max_logprob_entries",
    "ignore_unknown_fields",
    "response_role",
    "exclude_tools_when_tool_choice_none",
    "enable_force_include_usage",
    "enable_prompt_tokens_details",
    "enable_request_id_headers",
)
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "max_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


class Load(TypedDict):
    server_load: int


def server_info(options: ShimOptions, facts: pb.EngineFacts) -> Json:
    """Returns the answer. `vllm_config` has vLLM's form and names, as far as they fit."""
    limits = facts.limits
    return {
        "version": VERSION,
        "system_fingerprint": facts.numerics_id,
        "weights_version": facts.weights_version,
        "default_sampling_params": sampling_defaults(facts.default_sampling),
        "vllm_config": {
            "model_config": {
                "model": facts.model or facts.served_model_names[0],
                "served_model_name": list(facts.served_model_names),
                "max_model_len": facts.max_model_len,
                "max_logprobs": limits.max_logprobs,
            },
            "cache_config": {
                "block_size": facts.block_size,
                "num_gpu_blocks": facts.kv_groups[0].num_blocks if facts.kv_groups else None,
            },
            "scheduler_config": {"max_num_seqs": limits.max_num_seqs},
        },
        "limits": {field.name: getattr(limits, field.name) for field in limits.DESCRIPTOR.fields},
        "options": {name: getattr(options, name) for name in SHOWN_OPTIONS},
    }


def as_text(info: Json) -> Json:
    """Returns the answer with `vllm_config` as one text, as vLLM's `config_format=text` has it."""
    config: dict[str, Json] = info["vllm_config"]
    parts = [f"{name}={value!r}" for section in config.values() for name, value in section.items()]
    return {**info, "vllm_config": ", ".join(parts)}


def sampling_defaults(defaults: pb.SamplingParams) -> Json:
    """Returns what a request gets that leaves these out, as far as the model's generation_config.json says it."""
    values = {name: getattr(defaults, name) for name in SAMPLING if defaults.HasField(name)}
    return {name: as_written(value) if isinstance(value, float) else value for name, value in values.items()}
