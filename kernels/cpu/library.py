"""Finds the compiled module for this machine."""

import importlib
import logging
from typing import Protocol, cast

from kernels.cpu.self_check import products_are_exact

log = logging.getLogger(__name__)


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
    def quantise(self, type_: str, rows: int, first: int, count: int, k: int, packed: int, scales: int) -> None: ...
    def unpack_rows(
        self, type_: str, n: int, k: int, packed: int, scales: int, ids: int, count: int, out: int
    ) -> None: ...  # fmt: skip
    def product(
        self, type_: str, out_type: str, x: int, x_stride: int, rows: int, n: int, k: int, packed: int, scales: int,
        out: int,
    ) -> None: ...  # fmt: skip
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
    def stack(
        self, type_: str, layers: int, num_layers: int, tokens: int, heads: int, kv_heads: int, head_dim: int,
        block_size: int, eps: float, scale: float, cos_sin: int, positions: int, slots: int, tables: int,
        table_stride: int, starts: int, lens: int, requests: int, wanted: int, num_wanted: int, hidden: int,
        residual: int,
    ) -> None: ...  # fmt: skip
    def draw(
        self, logits: int, raw: int, rows: int, vocab: int, draws: int, ids: int, healthy: int
    ) -> None: ...  # fmt: skip


VARIANTS = ("_amx", "_avx512bf16", "_avx2", "_portable")


def load(variant: str | None = None) -> Library:
    """The fastest variant that this machine runs, or the one named. Raises KernelsMissing."""
    try:
        return _module(variant or _fastest())
    except ImportError as error:
        raise KernelsMissing(
            "tandem was installed without its compiled CPU kernels (is there a C++ compiler?)"
        ) from error


def _module(variant: str) -> Library:
    return cast(Library, importlib.import_module(f"kernels.cpu.{variant}"))


def _fastest() -> str:
    best = _module("_portable").best_variant()
    if best != "_amx":
        return best
    # Not every compiler builds it, and it has not run on such a machine before: it has to prove itself.
    try:
        if products_are_exact(_module("_amx")):
            return "_amx"
        log.warning("this machine has AMX, but the kernels for it compute wrongly here: AVX-512 is used instead")
    except ImportError:
        log.warning("this machine has AMX, but the compiler did not build the kernels for it: AVX-512 is used instead")
    return "_avx512bf16"


def runnable_variants() -> list[str]:
    """All that this machine can run, the fastest first."""
    return list(VARIANTS[VARIANTS.index(_fastest()) :])
