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
from services.options.declarations import WorkerOptions
from services.worker.loading import load_model
from services.worker.models.decoder import Decoder
from services.worker.models.tensors import num_weight_bytes

# (rows, new tokens of each, tokens before)
STEPS = ((1, 1, 128), (8, 1, 128), (32, 1, 128), (1, 256, 0))
ROUNDS, MAX_LEN = 11, 512
BASELINE = "Qwen3-0.6B"
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
    BASELINE: {
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "tie_word_embeddings": True,
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
        """Returns what the step must read and multiply: the weights, the KV cache of the tokens before, attention."""
        model = decoder.description
        embedding = model.vocab_size * model.hidden_size
        layers = num_weight_bytes(model, 2, 2) // 2 - embedding * (1 if model.tied else 2)
        length = self.context + self.tokens
        pairs = self.rows * sum(range(self.context + 1, length + 1))  # of a query and a key
        heads = sum(layer.attention.query_size for layer in model.layers)
        keys = sum(layer.attention.key_size for layer in model.layers)
        products = 2 * (layers * self.rows * self.tokens + embedding * self.rows)
        return Work(
            cold_bytes=2 * (layers + embedding) + 4 * keys * self.rows * self.context,
            operations=products + 4 * heads * pairs,
        )


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
        if step.context:
            texts.read(torch.randint(0, 1000, (step.rows, step.context), generator=source))
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
    args = parser.parse_args()
    ops = CpuOps(load(), available_cores())
    limits = probe(available_cores())
    decoders = []
    for name, shape in SHAPES.items():
        layers = min(args.layers or shape["num_hidden_layers"], shape["num_hidden_layers"])
        decoders.append(decoder_of({**shape, "num_hidden_layers": layers}, ops))
        print(f"{name}: {layers} layers", flush=True)
    steps = [Step(*sizes) for sizes in STEPS]
    measured = {step: seconds_of(decoders, step) for step in steps}
    for step, times in measured.items():
        for decoder, seconds in zip(decoders, times, strict=True):
            limits = limits.raised(step.work(decoder), seconds)
    report(decoders, measured, limits)


def report(decoders: list[Decoder], measured: dict[Step, list[float]], limits: Limits) -> None:
    print(f"limit: {limits.memory_bytes / 1e9:.1f} GB/s, {limits.operations / 1e9:.0f} Gop/s\n")
    print(
        f"| rows x tokens after context | model | ms | share of the limit | of {BASELINE}'s |\n|---|---|---:|---:|---:|"
    )
    for step, times in measured.items():
        found = zip(decoders, times, strict=True)
        shares = [limits.seconds(step.work(decoder)) / seconds for decoder, seconds in found]
        for name, seconds, share in zip(SHAPES, times, shares, strict=True):
            size = f"{step.rows} x {step.tokens} after {step.context}"
            print(f"| {size} | {name} | {1e3 * seconds:.2f} | {share:.1%} | {share / shares[0]:.3f} |")


if __name__ == "__main__":
    main()
