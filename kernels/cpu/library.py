"""Finds the compiled module for this machine."""

import importlib
from typing import Protocol, cast


class KernelsMissing(ImportError):
    """The package was installed without a C++ compiler."""


class Library(Protocol):
    """What every variant offers (native/module.cpp). Tensors go by address, element types as "f", "b" (bf16), "h"."""

    NAME: str

    def best_variant(self) -> str: ...
    def set_num_threads(self, count: int) -> None: ...
    def num_threads(self) -> int: ...
    def nanoseconds(self) -> int: ...
    def packed_size(self, type_: str, n: int, k: int) -> int: ...
    def pack(self, type_: str, rows: int, first: int, count: int, n: int, k: int, packed: int) -> None: ...
    def unpack_rows(self, type_: str, packed: int, k: int, ids: int, count: int, out: int) -> None: ...
    def product(
        self, type_: str, out_type: str, x: int, x_stride: int, rows: int, packed: int, n: int, k: int, out: int
    ) -> None: ...
    def rms_norm(
        self, type_: str, x: int, x_stride: int, residual: int, weight: int, eps: float, rows: int, size: int,
        out: int, total: int,
    ) -> None: ...  # fmt: skip
    def silu_mul(self, type_: str, gate_up: int, rows: int, size: int, out: int) -> None: ...
    def rope_and_write(
        self, type_: str, qkv: int, tokens: int, heads: int, query_norm: int, key_norm: int, eps: float, cos_sin: int,
        positions: int, slots: int, cache: int, kv_heads: int, head_dim: int, block_size: int, query: int,
    ) -> None: ...  # fmt: skip
    def paged_attention(
        self, type_: str, query: int, cache: int, kv_heads: int, head_dim: int, block_size: int,
        tables: int, table_stride: int, starts: int, lens: int, requests: int, heads: int, scale: float, out: int,
    ) -> None: ...  # fmt: skip
    def draw(
        self, logits: int, raw: int, rows: int, vocab: int, draws: int, ids: int, healthy: int
    ) -> None: ...  # fmt: skip


VARIANTS = ("_avx512bf16", "_avx2", "_portable")


def load(variant: str | None = None) -> Library:
    """The fastest variant that this machine runs, or the one named. Raises KernelsMissing."""
    try:
        chosen = variant or cast(Library, importlib.import_module("kernels.cpu._portable")).best_variant()
        return cast(Library, importlib.import_module(f"kernels.cpu.{chosen}"))
    except ImportError as error:
        raise KernelsMissing(
            "tandem was installed without its compiled CPU kernels (is there a C++ compiler?)"
        ) from error


def runnable_variants() -> list[str]:
    """All that this machine can run, the fastest first."""
    return list(VARIANTS[VARIANTS.index(load("_portable").best_variant()) :])
