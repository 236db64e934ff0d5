"""The flags about the model, its files and how they are loaded. Source: ModelConfig and LoadConfig in
vllm/engine/arg_utils.py.

Rows only: services/options/vllm/flag.py says what they mean.
"""

from services.options.vllm.flag import (
    COUNT,
    JSON,
    OBJECT,
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

_CODE = "Python code from outside is not loaded"
_POOLING = "embeddings, scores and other pooling are not supported yet"
_BESIDE = "a tokenizer or configuration that is not beside the weights is not supported"
_MEDIA = "text is the only input"


def _quantised(*methods: str) -> dict[str, str]:
    """Returns the clause for each method by which a checkpoint is quantised, as `--quantization` names it."""
    return {method: f"quantised checkpoints ({method}) are not supported yet" for method in methods}


def _formats(**formats: str) -> dict[str, str]:
    return {name: f"weights from {source} are not supported: safetensors are" for name, source in formats.items()}


MODEL: tuple[Flag, ...] = (
    same("served-model-name"),
    same("dtype", "auto is the checkpoint's"),
    same("seed", "a random one by default"),
    same("revision"),
    same("max-model-len", "auto and -1 are the default", harmless=("auto", "-1")),
    same(
        "quantization",
        "int8 and fp8, on load",
        refused=_quantised(
            "awq",
            "awq_marlin",
            "auto-round",
            "bitsandbytes",
            "compressed-tensors",
            "experts_int8",
            "fbgemm_fp8",
            "gguf",
            "gptq",
            "gptq_marlin",
            "inc",
            "modelopt",
            "modelopt_fp4",
            "modelopt_mxfp8",
            "moe_wna16",
            "mxfp4",
            "mxfp8",
            "petit_nvfp4",
            "quark",
            "torchao",
        ),
        short=("-q",),
    ),
    same("max-logprobs"),
    same("hf-overrides"),
    same("generation-config"),
    same("override-generation-config"),
    same("device", "gone in newer vLLM"),
    unused("trust-remote-code", SWITCH, "no code of a checkpoint is ever run; a model that needs it is refused"),
    unused("code-revision", TEXT, "no code of a checkpoint is ever run"),
    unused("enforce-eager", SWITCH, "how the model is executed changes no answer"),
    unused("disable-cascade-attn", SWITCH, "there is one attention, with the same bits in any batch"),
    unused("use-fp64-gumbel", SWITCH, "the noise is a function of seed and place"),
    unused("enable-cumem-allocator", SWITCH, "memory is planned at the start"),
    unused("enable-nccl-comm-suspend", SWITCH, "there is one device"),
    unused(
        "renderer-num-workers", at_least(1), "chats are rendered in processes of their own; see --tokenizer-replicas"
    ),
    unused("allow-deprecated-quantization", SWITCH, "it concerns methods that are refused anyway"),
    unused("allowed-local-media-path", TEXT, _MEDIA),
    unused("allowed-media-domains", TEXTS, _MEDIA),
    lacks("runner", one_of("auto", "generate", "pooling", "draft"), _POOLING, ("auto", "generate")),
    lacks("convert", one_of("auto", "none", "embed", "classify"), _POOLING, ("auto", "none")),
    lacks("pooler-config", OBJECT, _POOLING, ({},)),
    lacks("tokenizer", TEXT, _BESIDE, equal_to="model"),
    lacks("hf-config-path", TEXT, _BESIDE, equal_to="model"),
    lacks("tokenizer-revision", TEXT, _BESIDE, equal_to="revision"),
    lacks("tokenizer-mode", TEXT, "tokenizer.json is the only kind of tokenizer", ("auto", "hf")),
    lacks("config-format", TEXT, "config.json is the only kind of configuration", ("auto", "hf")),
    lacks("skip-tokenizer-init", SWITCH, "a server without a tokenizer is not supported"),
    lacks(
        "quantization-config", OBJECT, "quantization by layers is not supported yet: --quantization has int8 and fp8"
    ),
    lacks("model-impl", TEXT, "a model through transformers is not supported yet", ("auto", "vllm")),
    lacks("model-class-overrides", OBJECT, _CODE, ({},)),
    lacks("logits-processors", TEXTS, _CODE),
    lacks("io-processor-plugin", TEXT, _CODE),
    lacks(
        "logprobs-mode",
        one_of("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"),
        "logprobs are those before penalties, temperature and the like; others are not supported yet",
        ("raw_logprobs",),
    ),
    lacks("override-attention-dtype", TEXT, "attention computes in the model's data type"),
    lacks("enable-prompt-embeds", SWITCH, "prompts as embeddings are not supported"),
    lacks("enable-return-routed-experts", SWITCH, "the experts of each token are not returned"),
    lacks("return-sampling-mask", SWITCH, "the mask of each token is not returned"),
    lacks("enable-trace-replay", SWITCH, "replaying a trace is not supported; see `tandem replay`"),
    lacks("enable-sleep-mode", SWITCH, "sleep mode is not supported yet"),
    other("hf-token", TEXT, "set the environment variable HF_TOKEN"),
    other("disable-sliding-window", SWITCH, "use --max-model-len with the size of the window"),
)

LOADING: tuple[Flag, ...] = (
    same(
        "load-format",
        "auto, safetensors and dummy",
        harmless=("hf",),
        refused=_formats(
            pt="pickles of torch",
            npcache="pickles of torch",
            bitsandbytes="bitsandbytes",
            gguf="GGUF files",
            tensorizer="Tensorizer",
            runai_streamer="the Run:ai streamer",
            runai_streamer_sharded="the Run:ai streamer",
            sharded_state="shards of ranks",
            mistral="Mistral's consolidated files",
            fastsafetensors="fastsafetensors",
            instanttensor="InstantTensor",
            modelexpress="ModelExpress",
        ),
    ),
    other("download-dir", TEXT, "set the environment variable HF_HOME"),
    unused("safetensors-load-strategy", TEXT, "files are mapped into memory"),
    unused("safetensors-prefetch-num-threads", WHOLE, "files are mapped into memory"),
    unused("safetensors-prefetch-block-size", COUNT, "files are mapped into memory"),
    unused("model-loader-extra-config", OBJECT, "it tunes the loading of --load-format"),
    unused("ignore-patterns", TEXTS, "only the files that are needed are downloaded"),
    unused("use-tqdm-on-load", SWITCH, "there is no bar for loading"),
    unused("pt-load-map-location", JSON, "it is about pickles of torch, which are never read"),
)
