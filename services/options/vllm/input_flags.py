"""The flags about media in prompts and about adapters. Source: MultiModalConfig and LoRAConfig in
vllm/engine/arg_utils.py.

Rows only: services/options/vllm/flag.py says what they mean.
"""

from services.options.vllm.flag import LIMITS, NUMBER, OBJECT, SWITCH, TEXT, TEXTS, WHOLE, Flag, at_least, lacks, unused

_MEDIA = "images, audio and video in prompts are not supported yet"
_TEXT = "text is the only input"
_LORA = "LoRA adapters are not supported yet"
_TUNES_LORA = "it tunes --enable-lora"

MEDIA: tuple[Flag, ...] = (
    unused("language-model-only", SWITCH, _TEXT),
    lacks("limit-mm-per-prompt", LIMITS, _MEDIA, (0,)),
    lacks("enable-mm-embeds", SWITCH, _MEDIA),
    lacks("mm-encoder-only", SWITCH, _MEDIA),
    unused("media-io-kwargs", OBJECT, _TEXT),
    unused("mm-processor-kwargs", OBJECT, _TEXT),
    unused("mm-processor-cache-gb", NUMBER, _TEXT),
    unused("mm-processor-cache-type", TEXT, _TEXT),
    unused("mm-processor-device", TEXT, _TEXT),
    unused("mm-hasher-algorithm", TEXT, _TEXT),
    unused("mm-shm-cache-max-object-size-mb", WHOLE, _TEXT),
    unused("mm-encoder-tp-mode", TEXT, _TEXT),
    unused("mm-encoder-attn-backend", TEXT, _TEXT),
    unused("mm-encoder-attn-dtype", TEXT, _TEXT),
    unused("mm-encoder-fp8-scale-path", TEXT, _TEXT),
    unused("mm-encoder-fp8-scale-save-path", TEXT, _TEXT),
    unused("mm-encoder-fp8-scale-save-margin", NUMBER, _TEXT),
    unused("mm-tensor-ipc", TEXT, _TEXT),
    unused("mm-ipc-gpu-memory-gb", NUMBER, _TEXT),
    unused("mm-device-do-normalize", SWITCH, _TEXT),
    unused("interleave-mm-strings", SWITCH, _TEXT),
    unused("skip-mm-profiling", SWITCH, _TEXT),
    unused("video-pruning-rate", NUMBER, _TEXT),
    unused("video-pruning-method", TEXT, _TEXT),
)

LORA: tuple[Flag, ...] = (
    lacks("enable-lora", SWITCH, _LORA),
    lacks("default-mm-loras", OBJECT, _LORA, ({},)),
    unused("max-loras", at_least(1), _TUNES_LORA),
    unused("max-lora-rank", at_least(1), _TUNES_LORA),
    unused("max-cpu-loras", at_least(1), _TUNES_LORA),
    unused("lora-dtype", TEXT, _TUNES_LORA),
    unused("lora-target-modules", TEXTS, _TUNES_LORA),
    unused("enable-tower-connector-lora", SWITCH, _TUNES_LORA),
    unused("fully-sharded-loras", SWITCH, _TUNES_LORA),
    unused("specialize-active-lora", SWITCH, _TUNES_LORA),
    unused("enable-mixed-moe-lora-format", SWITCH, _TUNES_LORA),
    unused("enable-moe-shared-loras", SWITCH, _TUNES_LORA),
)
