"""`python -m loadtest.studies.families [--layers N]`: shares of the machine's limit that whole steps of families reach.

The limit of a step is the larger of its bytes over the memory's rate and its operations over the rate of products, both
of one probe (loadtest/kernels/limits.py). Random weights in the shapes of published models; the models take turns.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.cpu.library import load
from kernels.cpu.ops import CpuOps
from loadtest.kernels.limits import Limits, Work, probe
from loadtest.studies.quantization import Texts
from services.machine import available_cores
from services.machine.available import available_bytes
from services.options.declarations import WorkerOptions
from services.worker.loading import load_model
from services.worker.models.decoder import Decoder
from services.worker.models.tensors import num_weight_bytes

# (rows, new tokens of each, tokens before)
STEPS = (*((rows, 1, context) for context in (300, 8000) for rows in (1, 8, 32)), (1, 256, 0))
ROUNDS, MAX_LEN = 11, 8192
LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "short_factor": [1.0] * 48,
    "long_factor": [1.5] * 48,
}  # fmt: skip
# From the models' config.json; Phi-4-mini with 8 of its 32 layers.
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "Gemma-3-1B": {
        "architectures": ["Gemma3ForCausalLM"], "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
        "query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
    },
    "Llama-3.2-1B": {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "tie_word_embeddings": True, "rope_parameters": LLAMA_3, "max_position_embeddings": 131072,
    },
    "Qwen2.5-1.5B": {
        "architectures": ["Qwen2ForCausalLM"], "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960,
        "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
    "Phi-4-mini": {
        "architectures": ["Phi3ForCausalLM"], "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 8192,
        "num_hidden_layers": 8, "num_attention_heads": 24, "num_key_value_heads": 8, "tie_word_embeddings": True,
        "rope_parameters": LONGROPE, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 4096,
        "max_position_embeddings": 131072,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    rows: int
    tokens: int
    context: int

    def work(self, decoder: Decoder) -> Work:
        """Returns what the step must read and multiply: the weights, the KV cache of the tokens before, attention; of
        layers with a window, the keys in it."""
        model = decoder.description
        embedding = model.vocab_size * model.hidden_size
        layers = num_weight_bytes(model, 2, 2) // 2 - embedding * (1 if model.tied else 2)
        length = self.context + self.tokens
        attended = cached = 0
        for attention in (layer.attention for layer in model.layers):
            window = attention.window or length
            pairs = sum(min(seen, window) for seen in range(self.context + 1, length + 1))  # of a query and a key
            attended += attention.query_size * pairs
            cached += attention.key_size * min(self.context, window - 1)
        products = 2 * (layers * self.rows * self.tokens + embedding * self.rows)
        return Work(
            cold_bytes=2 * (layers + embedding) + 4 * self.rows * cached,
            operations=products + 4 * self.rows * attended,
        )

    def cache_bytes(self, decoder: Decoder) -> int:
        """Returns the bytes of the texts' KV cache."""
        layout = decoder.kv_layout
        sizes = [decoder.description.layers[layout.layer_at(place)].attention for place in range(layout.num_places)]
        return 4 * self.rows * (self.context + self.tokens) * sum(size.key_size for size in sizes)


def decoder_of(shape: dict[str, Any], ops: CpuOps) -> Decoder:
    options = WorkerOptions(device="cpu", load_format="dummy", dtype="bfloat16", max_model_len=MAX_LEN)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape))
        return load_model(Path(folder), options, ops).decoder


def seconds_of(decoders: list[Decoder], step: Step) -> list[float]:
    """Returns the median seconds of the step for each decoder, sampled rows' logits included; they take turns."""
    several = [Texts(decoder, step.rows, step.context + step.tokens) for decoder in decoders]
    source = torch.Generator().manual_seed(1)
    for texts in several:
        texts.fill(step.context)
    ids = torch.randint(0, 1000, (step.rows, step.tokens), generator=source)
    times: list[list[float]] = [[] for _ in decoders]
    for _ in range(ROUNDS):
        for decoder, texts, one in zip(decoders, several, times, strict=True):
            began = time.perf_counter()
            hidden = texts.read(ids, keep=False)
            decoder.logits(hidden.unflatten(0, ids.shape)[:, -1])
            one.append(time.perf_counter() - began)
    return [statistics.median(one[1:]) for one in times]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.studies.families")
    parser.add_argument("--layers", type=int, help="at most so many layers of each model")
    parser.add_argument("--models", nargs="*", choices=SHAPES, default=list(SHAPES), help="the first is compared with")
    args = parser.parse_args()
    ops = CpuOps(load(), available_cores())
    limits = probe(available_cores())
    decoders = []
    for name in args.models:
        shape = SHAPES[name]
        layers = min(args.layers or shape["num_hidden_layers"], shape["num_hidden_layers"])
        decoders.append(decoder_of({**shape, "num_hidden_layers": layers}, ops))
        print(f"{name}: {layers} layers", flush=True)
    every = [Step(*sizes) for sizes in STEPS]
    steps = [step for step in every if sum(map(step.cache_bytes, decoders)) < 0.8 * available_bytes()]
    print(f"without memory for their KV cache: {[step for step in every if step not in steps]}", flush=True)
    measured = {step: seconds_of(decoders, step) for step in steps}
    for step, times in measured.items():
        for decoder, seconds in zip(decoders, times, strict=True):
            limits = limits.raised(step.work(decoder), seconds)
    report(args.models, decoders, measured, limits)


def report(names: list[str], decoders: list[Decoder], measured: dict[Step, list[float]], limits: Limits) -> None:
    print(f"limit: {limits.memory_bytes / 1e9:.1f} GB/s, {limits.operations / 1e9:.0f} Gop/s\n")
    print(
        f"| rows x tokens after context | model | ms | share of the limit | of {names[0]}'s |\n|---|---|---:|---:|---:|"
    )
    for step, times in measured.items():
        found = zip(decoders, times, strict=True)
        shares = [limits.seconds(step.work(decoder)) / seconds for decoder, seconds in found]
        for name, seconds, share in zip(names, times, shares, strict=True):
            size = f"{step.rows} x {step.tokens} after {step.context}"
            print(f"| {size} | {name} | {1e3 * seconds:.2f} | {share:.1%} | {share / shares[0]:.3f} |")


if __name__ == "__main__":
    main()
