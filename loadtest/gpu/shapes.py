"""The shapes of the timed models, Qwen3-0.6B and Qwen3-8B in bf16, and their block size; the products of Qwen3-32B."""

from dataclasses import dataclass
from typing import Any

import torch

DTYPE = torch.bfloat16
BLOCK_SIZE = 16
VOCAB, KV_HEADS, HEAD_DIM, MAX_LENGTH = 151_936, 8, 128, 40_960  # of both


@dataclass(frozen=True)
class Shape:
    hidden: int
    intermediate: int
    num_layers: int
    heads: int
    tied: bool  # whether the embedding is the output head

    @property
    def products(self) -> list[tuple[int, int]]:
        """(n outputs, k inputs) of every linear layer: qkv, out, gate_up, down and the head."""
        attention = self.heads * HEAD_DIM
        return [
            (attention + 2 * KV_HEADS * HEAD_DIM, self.hidden),
            (self.hidden, attention),
            (2 * self.intermediate, self.hidden),
            (self.hidden, self.intermediate),
            (VOCAB, self.hidden),
        ]

    @property
    def config(self) -> dict[str, Any]:
        """The config.json of the shape, with the names of transformers' Qwen3Config."""
        return {
            "vocab_size": VOCAB, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
            "max_position_embeddings": MAX_LENGTH, "rope_theta": 1000000.0, "dtype": "bfloat16",
            "eos_token_id": 151645, "hidden_size": self.hidden, "intermediate_size": self.intermediate,
            "num_hidden_layers": self.num_layers, "num_attention_heads": self.heads, "tie_word_embeddings": self.tied,
        }  # fmt: skip


SHAPES = {"0.6B": Shape(1024, 3072, 28, 16, True), "8B": Shape(4096, 12288, 36, 32, False)}
# For the question of which rows cuBLAS can multiply (cublas.py); steps of 32B are not timed.
ALL_SHAPES = SHAPES | {"32B": Shape(5120, 25600, 64, 64, False)}
PRODUCTS = [product for shape in SHAPES.values() for product in shape.products]


def quantizations(device: torch.device) -> list[str | None]:
    """Returns the values of --quantization to check on `device`: None (plain weights), int8, and fp8 if it converts
    e4m3.

    Only Ada, Hopper and later GPUs convert e4m3, the type of fp8 weights. The interpreter and the compiler without a
    GPU do, too.
    """
    fp8 = device.type != "cuda" or not torch.cuda.is_available() or torch.cuda.get_device_capability(device) >= (8, 9)
    return [None, "int8"] + ["fp8"] * fp8
