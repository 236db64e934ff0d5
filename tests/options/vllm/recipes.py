"""Twenty command lines from documents and recipes of vLLM, as they stand there; only the name of the model is MODEL.

`FILE` stands for a file beside the command, with its content. Those without `missing` start, as
tests/e2e/test_vllm_recipes.py shows. The others are refused: test_recipes.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """`missing`: parts of the refusal, one for each thing that is missing. `without_effect`: flags that the log
    names."""

    source: str  # repository and path, or the address of a page
    line: str  # behind `vllm serve`, or `python -m vllm.entrypoints.openai.api_server`
    missing: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    file: str = ""


VLLM = "https://github.com/vllm-project/vllm"
RECIPES_OF_VLLM = "https://github.com/vllm-project/recipes"
TENSOR, REPLICAS = "(tensor parallelism) is not supported yet", "(data parallel replicas) are not supported yet"
SPECULATION = "speculative decoding is not supported yet"
SMALL_CACHE = "a quantised KV cache is not supported yet"
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"

STARTING = (
    Recipe(
        f"{VLLM} docs/deployment/k8s.md",
        "MODEL --trust-remote-code --enable-chunked-prefill --max_num_batched_tokens 1024",
        without_effect=("--trust-remote-code", "--enable-chunked-prefill"),
    ),
    Recipe(f"{VLLM} docs/serving/openai_compatible_server.md", "MODEL --dtype auto --api-key token-abc123"),
    Recipe(
        f"{VLLM} docs/features/tool_calling.md",
        "MODEL --enable-auto-tool-choice --tool-call-parser llama3_json --chat-template FILE",
        file=TEMPLATE,
    ),
    Recipe(
        f"{VLLM} docs/features/reasoning_outputs.md",
        """MODEL --reasoning-parser qwen3 --reasoning-config '{"reasoning_start_str": "<think>", "reasoning_end_str":"""
        """ "I have to give the solution based on the reasoning directly now.</think>"}'""",
        without_effect=("--reasoning-config",),
    ),
    Recipe(
        "https://huggingface.co/unfair11212/learn/blob/main/server.bash",
        "--host 127.0.0.1 --port 8422 --model MODEL --enable-reasoning --reasoning-parser deepseek_r1"
        " --tensor-parallel-size 1 --max-model-len 2048",
        without_effect=("--enable-reasoning", "--tensor-parallel-size"),
    ),
)

REFUSED = (
    Recipe(
        f"{RECIPES_OF_VLLM} Qwen/Qwen3-Coder-480B-A35B.md",
        "MODEL --tensor-parallel-size 8 --max-model-len 32000 --enable-auto-tool-choice --tool-call-parser qwen3_coder",
        missing=(TENSOR,),
    ),
    Recipe(
        f"{RECIPES_OF_VLLM} Qwen/Qwen3-Coder-480B-A35B.md",
        "MODEL --enable-expert-parallel --data-parallel-size 8 --enable-auto-tool-choice"
        " --tool-call-parser qwen3_coder",
        missing=(REPLICAS,),
    ),
    Recipe(
        f"{RECIPES_OF_VLLM} Seed/Seed-OSS-36B.md",
        "MODEL --tensor-parallel-size 8 --enable-auto-tool-choice --tool-call-parser seed_oss"
        " --no-enable-prefix-caching --trust-remote-code",
        missing=(TENSOR,),
    ),
    Recipe(
        f"{RECIPES_OF_VLLM} Qwen/Qwen3-Next.md",
        "MODEL --tokenizer-mode auto --gpu-memory-utilization 0.8"
        """ --speculative-config '{"method": "qwen3_next_mtp", "num_speculative_tokens": 2}'"""
        " --tensor-parallel-size 4 --no-enable-chunked-prefill",
        missing=(TENSOR, SPECULATION),
    ),
    Recipe(
        f"{RECIPES_OF_VLLM} OpenAI/GPT-OSS.md",
        "MODEL --tensor-parallel-size=8 --attention-backend ROCM_AITER_UNIFIED_ATTN"
        " -cc.pass_config.fuse_rope_kvcache=True -cc.use_inductor_graph_partition=True --gpu-memory-utilization 0.95"
        " --block-size=64",
        missing=(TENSOR,),
    ),
    Recipe(
        f"{RECIPES_OF_VLLM} OpenAI/GPT-OSS.md",
        "MODEL --tensor_parallel_size 8 --max-model-len 131072 --max-num-batched-tokens 10240 --max-num-seqs 128"
        " --gpu-memory-utilization 0.85 --no-enable-prefix-caching",
        missing=(TENSOR,),
    ),
    Recipe(
        f"{RECIPES_OF_VLLM} OpenAI/GPT-OSS.md",
        "MODEL --config FILE --tensor-parallel-size 1",
        missing=(SMALL_CACHE, SPECULATION, "--stream-interval 20: chunks of several tokens are not supported"),
        file="""\
kv-cache-dtype: fp8
no-enable-prefix-caching: true
max-cudagraph-capture-size: 2048
max-num-batched-tokens: 8192
stream-interval: 20
speculative-config: '{"model":"nvidia/gpt-oss-120b-Eagle3-v2","num_speculative_tokens":3,"method":"eagle3","draft_tensor_parallel_size":1}'
""",  # noqa: E501
    ),
    Recipe(
        f"{RECIPES_OF_VLLM} Llama/Llama3.3-70B.md",
        "MODEL --config FILE --tensor-parallel-size 1 --max-num-seqs 512 --max-model-len 10240",
        missing=(SMALL_CACHE,),
        file="""\
kv-cache-dtype: fp8
compilation-config: '{"pass_config":{"enable_fi_allreduce_fusion":true,"enable_attn_fusion":true,"enable_noop":true}}'
async-scheduling: true
no-enable-prefix-caching: true
max-num-batched-tokens: 8192
""",
    ),
    Recipe(
        f"{RECIPES_OF_VLLM} Qwen/Qwen2.5-VL.md",
        "MODEL --host 0.0.0.0 --port 8000 --tensor-parallel-size 4 --mm-encoder-tp-mode data"
        """ --limit-mm-per-prompt '{"image":2,"video":0}'""",
        missing=(TENSOR, "images, audio and video in prompts are not supported yet"),
    ),
    Recipe(
        f"{RECIPES_OF_VLLM} Mistral/Ministral-3-Instruct.md",
        "MODEL --tokenizer_mode mistral --config_format mistral --load_format mistral --enable-auto-tool-choice"
        " --tool-call-parser mistral",
        missing=(
            "--tokenizer-mode mistral: tokenizer.json is the only kind of tokenizer",
            "--config-format mistral: config.json is the only kind of configuration",
            "--load-format mistral: weights from Mistral's consolidated files are not supported",
        ),
    ),
    Recipe(
        f"{VLLM} docs/features/lora.md",
        "MODEL --enable-lora --lora-modules sql-lora=$HOME/.cache/huggingface/hub/"
        "models--yard1--llama-2-7b-sql-lora-test/snapshots/0dfa347e8877a4d4ed19ee56c140fa518470028c/",
        missing=(
            "--enable-lora: LoRA adapters are not supported yet",
            "--lora-modules: LoRA adapters are not supported yet",
        ),
    ),
    Recipe(
        f"{VLLM} docs/features/lora.md",
        "MODEL --max-model-len 2048 --enable-lora"
        """ --default_mm_loras '{"audio":"ibm-granite/granite-speech-3.3-2b"}' --max-lora-rank 64""",
        missing=("--enable-lora: LoRA adapters are not supported yet",),
    ),
    Recipe(
        f"{VLLM} docs/features/nixl_connector_usage.md",
        "MODEL --port 8100 --enforce-eager --kv-transfer-config"
        """ '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_load_failure_policy":"fail"}'""",
        missing=("moving the KV cache between servers (prefill and decode apart) is not supported yet",),
    ),
    Recipe(
        f"{VLLM} docs/serving/openai_compatible_server.md",
        "MODEL --task embed --trust-remote-code --max-model-len 4096 --chat-template examples/template_vlm2vec.jinja",
        missing=("--task embed: embeddings, scores, transcriptions and other pooling are not supported yet",),
    ),
    Recipe(
        "https://www.mintlify.com/vllm-project/vllm/api/cli/serve",
        "MODEL --quantization awq",
        missing=("--quantization awq: quantised checkpoints (awq) are not supported yet",),
    ),
)
