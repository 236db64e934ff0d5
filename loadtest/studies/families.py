"""`python -m loadtest.studies.families [--layers N]`: shares of the machine's limit that whole steps of families reach.

The limit of products, and of attention, is the larger of their bytes over the memory's rate and their operations over
the rate of products, both of one probe (loadtest/kernels/limits.py); that of a step is the sum, as on a GPU
(loadtest/gpu/ideal.py), because one begins with what the other has computed. Until 2026-11-28 it was the larger of both
sums, which the last column still has. Of a mixture, only experts that a step's rows have are counted; one more, untimed
step counts them. Random weights in the shapes of published models; the models take turns.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.cpu.library import load
from kernels.cpu.ops import CpuOps
from kernels.interface import Stack
from kernels.program import Operation, Route
from kernels.stack import EagerStack
from loadtest.kernels.limits import Limits, Work, probe
from loadtest.studies.quantization import Texts
from services.machine import available_cores
from services.machine.available import available_bytes
from services.options.declarations import WorkerOptions
from services.worker.loading import load_model
from services.worker.models.decoder import Decoder
from services.worker.models.description import Mixture
from services.worker.models.tensors import num_weight_bytes

# (rows, new tokens of each, tokens before)
STEPS = (*((rows, 1, context) for context in (300, 8000) for rows in (1, 8, 32)), (1, 256, 0), (1, 1024, 0))
ROUNDS, MAX_LEN = 11, 8192
LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "short_factor": [1.0] * 48,
    "long_factor": [1.5] * 48,
}  # fmt: skip
# From the models' config.json; Phi-4-mini with 8 of its 32 layers. The mixtures are smaller than any that is published.
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
    "Qwen3-MoE": {
        "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 384, "norm_topk_prob": True,
        "tie_word_embeddings": True,
    },
    "gpt-oss": {
        "architectures": ["GptOssForCausalLM"], "vocab_size": 151936, "hidden_size": 1440, "intermediate_size": 1440,
        "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
        "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "tie_word_embeddings": True,
    },
}  # fmt: skip


class CountingOps(CpuOps):
    """Kernels that count how many experts of each layer a step's rows have, while `hits` is a list."""

    hits: list[int] | None = None

    def route(self, logits: Tensor, how: Route) -> tuple[Tensor, Tensor]:
        ids, weights = super().route(logits, how)
        if self.hits is not None:
            self.hits.append(len(ids.unique()))
        return ids, weights

    def stack(self, operations: Sequence[Operation]) -> Stack:
        compiled, eager = super().stack(operations), EagerStack(self, operations)
        return lambda *step: (compiled if self.hits is None else eager)(*step)


@dataclass(frozen=True)
class Step:
    rows: int
    tokens: int
    context: int

    def works(self, decoder: Decoder, hits: Sequence[int]) -> tuple[Work, Work]:
        """Returns what the step must read and multiply: the weights; the KV cache of the tokens before, of layers with
        a window the keys in it. `hits`: how many experts each mixture's rows have."""
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
        mixtures = [layer.mlp for layer in model.layers if isinstance(layer.mlp, Mixture)]
        sizes = [model.hidden_size * (mixture.expert.inner_size + mixture.expert.size) for mixture in mixtures]
        found = list(zip(mixtures, sizes, hits, strict=True))
        unread = sum((mixture.count - hit) * size for mixture, size, hit in found)
        unused = sum((mixture.count - mixture.router.top_k) * size for mixture, size, _ in found)  # of a row
        products = 2 * ((layers - unused) * self.rows * self.tokens + embedding * self.rows)
        return (
            Work(cold_bytes=2 * (layers - unread + embedding), operations=products),
            Work(cold_bytes=4 * self.rows * cached, operations=4 * self.rows * attended),
        )

    def cache_bytes(self, decoder: Decoder) -> int:
        """Returns the bytes of the texts' KV cache."""
        layout = decoder.kv_layout
        sizes = [decoder.description.layers[layout.layer_at(place)].attention for place in range(layout.num_places)]
        return 4 * self.rows * (self.context + self.tokens) * sum(size.key_size for size in sizes)


def decoder_of(shape: dict[str, Any], ops: CountingOps) -> Decoder:
    options = WorkerOptions(device="cpu", load_format="dummy", dtype="bfloat16", max_model_len=MAX_LEN)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape))
        return load_model(Path(folder), options, ops).decoder


@dataclass(frozen=True)
class Timed:
    seconds: float
    works: tuple[Work, ...]

    @property
    def work(self) -> Work:
        """All of it."""
        return Work(sum(one.cold_bytes for one in self.works), 0, sum(one.operations for one in self.works))

    def share(self, limits: Limits) -> float:
        """Returns the share of the limit."""
        return sum(map(limits.seconds, self.works)) / self.seconds


def timed(decoders: list[Decoder], ops: CountingOps, step: Step) -> list[Timed]:
    """Returns the median seconds of the step for each decoder, sampled rows' logits included; they take turns."""
    several = [Texts(decoder, step.rows, step.context + step.tokens) for decoder in decoders]
    source = torch.Generator().manual_seed(1)
    for texts in several:
        texts.fill(step.context)
    ids = torch.randint(0, 1000, (step.rows, step.tokens), generator=source)
    works = []
    for decoder, texts in zip(decoders, several, strict=True):
        ops.hits = []
        texts.read(ids, keep=False)
        works.append(step.works(decoder, ops.hits))
    ops.hits = None
    times: list[list[float]] = [[] for _ in decoders]
    for _ in range(ROUNDS):
        for decoder, texts, one in zip(decoders, several, times, strict=True):
            began = time.perf_counter()
            hidden = texts.read(ids, keep=False)
            decoder.logits(hidden.unflatten(0, ids.shape)[:, -1])
            one.append(time.perf_counter() - began)
    return [Timed(statistics.median(one[1:]), work) for one, work in zip(times, works, strict=True)]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.studies.families")
    parser.add_argument("--layers", type=int, help="at most so many layers of each model")
    parser.add_argument("--models", nargs="*", choices=SHAPES, default=list(SHAPES), help="the first is compared with")
    args = parser.parse_args()
    ops = CountingOps(load(), available_cores())
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
    measured = {step: timed(decoders, ops, step) for step in steps}
    for one in (one for found in measured.values() for one in found):
        limits = limits.raised(one.work, one.seconds)
    report(args.models, measured, limits)


def report(names: list[str], measured: dict[Step, list[Timed]], limits: Limits) -> None:
    print(f"limit: {limits.memory_bytes / 1e9:.1f} GB/s, {limits.operations / 1e9:.0f} Gop/s\n")
    print(
        f"| rows x tokens after context | model | ms | share of the limit | of {names[0]}'s | by both sums, of its |\n"
        "|---|---|---:|---:|---:|---:|"
    )
    for step, found in measured.items():
        shares = [one.share(limits) for one in found]
        sums = [limits.seconds(one.work) / one.seconds for one in found]
        for name, one, share, by_sums in zip(names, found, shares, sums, strict=True):
            size = f"{step.rows} x {step.tokens} after {step.context}"
            parts = f"{1e3 * one.seconds:.2f} | {share:.1%} | {share / shares[0]:.3f}"
            print(f"| {size} | {name} | {parts} | {by_sums:.1%}, {by_sums / sums[0]:.3f} |")


if __name__ == "__main__":
    main()
