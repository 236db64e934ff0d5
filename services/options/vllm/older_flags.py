"""Flags that newer versions of vLLM have dropped, and that scripts and documents still use.

Source: the engine arguments of vLLM 0.6 to 0.12, https://docs.vllm.ai/en/v0.8.5/serving/engine_args.html and later.
Rows only: services/options/vllm/flag.py says what they mean.
"""

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
    unused,
)

_SPECULATION = "speculative decoding is not supported yet"
_ADAPTERS = "prompt adapters are not supported"
_LORA = "it tunes --enable-lora"
_EXECUTION = "how the model is executed changes no answer"
_FORMS = "use --structured-outputs-config"
_ROPE = "use --hf-overrides with the key of config.json"

OLDER: tuple[Flag, ...] = (
    unused("disable-log-requests", SWITCH, "requests are never logged"),
    unused("swap-space", at_least(0, float), "a preempted request is computed again, not swapped out"),
    unused("preemption-mode", one_of("recompute", "swap"), "a preempted request is computed again"),
    unused("use-v2-block-manager", SWITCH, "there is one block manager"),
    unused("num-scheduler-steps", at_least(1), "steps are planned ahead by --async-scheduling"),
    unused("multi-step-stream-outputs", SWITCH, "each token is sent at once"),
    unused("num-lookahead-slots", WHOLE, _EXECUTION),
    unused("scheduler-delay-factor", NUMBER, "the scheduler shares each step by its own rule"),
    unused("disable-async-output-proc", SWITCH, _EXECUTION),
    unused("max-seq-len-to-capture", WHOLE, _EXECUTION),
    unused("max-context-len-to-capture", WHOLE, _EXECUTION),
    unused("cuda-graph-sizes", WHOLES, _EXECUTION),
    unused("disable-frontend-multiprocessing", SWITCH, "each role is a process"),
    unused("tokenizer-pool-size", WHOLE, "see --tokenizer-replicas"),
    unused("tokenizer-pool-type", TEXT, "see --tokenizer-replicas"),
    unused("tokenizer-pool-extra-config", OBJECT, "see --tokenizer-replicas"),
    unused("disable-mm-preprocessor-cache", SWITCH, "text is the only input"),
    unused("enable-reasoning", SWITCH, "the format of reasoning is found by the model's files"),
    unused(
        "guided-decoding-backend",
        TEXT,
        "there is one way to keep answers in their form",
    ),
    other("guided-decoding-disable-any-whitespace", SWITCH, _FORMS),
    other("guided-decoding-disable-additional-properties", SWITCH, _FORMS),
    unused("guided-decoding-disable-fallback", SWITCH, "there is one way to keep answers in their form"),
    other("rope-scaling", OBJECT, _ROPE),
    other("rope-theta", NUMBER, _ROPE),
    lacks(
        "task",
        one_of("auto", "generate", "embedding", "embed", "classify", "score", "reward", "transcription", "draft"),
        "embeddings, scores, transcriptions and other pooling are not supported yet",
        ("auto", "generate"),
    ),
    lacks("override-pooler-config", OBJECT, "embeddings, scores and other pooling are not supported yet", ({},)),
    lacks("override-neuron-config", OBJECT, "AWS Neuron devices are not supported", ({},)),
    lacks("quantization-param-path", TEXT, "a quantised KV cache is not supported yet"),
    lacks("worker-use-ray", SWITCH, "placing workers by Ray is not supported yet"),
    lacks("engine-use-ray", SWITCH, "placing workers by Ray is not supported yet"),
    lacks("speculative-model", TEXT, _SPECULATION),
    lacks("num-speculative-tokens", at_least(0), _SPECULATION, (0,)),
    unused("speculative-draft-tensor-parallel-size", WHOLE, "it tunes --speculative-model"),
    unused("speculative-max-model-len", WHOLE, "it tunes --speculative-model"),
    unused("speculative-disable-by-batch-size", WHOLE, "it tunes --speculative-model"),
    unused("speculative-model-quantization", TEXT, "it tunes --speculative-model"),
    unused("speculative-disable-mqa-scorer", SWITCH, "it tunes --speculative-model"),
    unused("ngram-prompt-lookup-max", WHOLE, "it tunes --speculative-model"),
    unused("ngram-prompt-lookup-min", WHOLE, "it tunes --speculative-model"),
    unused("spec-decoding-acceptance-method", TEXT, "it tunes --speculative-model"),
    unused("disable-logprobs-during-spec-decoding", JSON, "it tunes --speculative-model"),
    lacks("enable-prompt-adapter", SWITCH, _ADAPTERS),
    lacks("prompt-adapters", TEXTS, _ADAPTERS),
    unused("max-prompt-adapters", WHOLE, "it tunes --enable-prompt-adapter"),
    unused("max-prompt-adapter-token", WHOLE, "it tunes --enable-prompt-adapter"),
    unused("enable-lora-bias", SWITCH, _LORA),
    unused("lora-extra-vocab-size", WHOLE, _LORA),
    unused("long-lora-scaling-factors", TEXTS, _LORA),
    lacks("qlora-adapter-name-or-path", TEXT, "LoRA adapters are not supported yet"),
)
