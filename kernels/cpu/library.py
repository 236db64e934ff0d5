"""Finds the compiled module for this machine: the fastest variant of the kernels that it runs, or the one asked for.

A variant is imported only where the machine has its instructions: without them, the import itself may end the process.
Variants go by the names in VARIANTS; the module of one has an underscore before its name.
"""

import importlib
import logging
from typing import Protocol, cast

from kernels.cpu.self_check import products_are_exact

log = logging.getLogger(__name__)


class KernelsMissing(ImportError):
    """The package was installed without a C++ compiler."""


class VariantRefused(Exception):
    """This machine does not run the variant that was asked for. The message names it, the reason and what it runs."""


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
        table_stride: int, starts: int, lens: int, requests: int, logits_indices: int, num_logits: int, hidden: int,
        residual: int,
    ) -> None: ...  # fmt: skip
    def draw(
        self, logits: int, raw: int, rows: int, vocab: int, draws: int, ids: int, healthy: int
    ) -> None: ...  # fmt: skip


# The fastest first. A machine that has the instructions of one has those of all behind it.
VARIANTS = ("amx", "avx512bf16", "avx2", "portable")


def load(variant: str | None = None) -> Library:
    """The fastest variant that this machine runs, or the one named.

    Raises KernelsMissing where none was built, VariantRefused for one that this machine does not run.
    """
    if variant is None:
        return _module(_fastest())
    if reason := _why_not(variant):
        raise VariantRefused(f"{variant}: {reason}; this machine runs {', '.join(runnable_variants())}")
    return _module(variant)


def runnable_variants() -> list[str]:
    """Those that were built and whose instructions this machine has, the fastest first. Raises KernelsMissing."""
    return [variant for variant in VARIANTS if _why_not(variant) is None]


def best_variant() -> str:
    """The fastest whose instructions this machine has, built or not. Raises KernelsMissing."""
    try:
        return _module("portable").best_variant().removeprefix("_")
    except ImportError as error:
        raise KernelsMissing(
            "tandem was installed without its compiled CPU kernels (is there a C++ compiler?)"
        ) from error


def _module(variant: str) -> Library:
    return cast(Library, importlib.import_module(f"kernels.cpu._{variant}"))


def _why_not(variant: str) -> str | None:
    """The reason why this machine does not run a variant; None where it does. Raises KernelsMissing."""
    if VARIANTS.index(variant) < VARIANTS.index(best_variant()):
        return "this machine does not offer its instructions"
    try:
        library = _module(variant)
    except ImportError:
        return "the compiler did not build it"
    if variant == "amx" and not products_are_exact(library):  # no machine with AMX has run it yet
        return "it computes wrongly on this machine"
    return None


def _fastest() -> str:
    """Logs each faster variant that this machine could run and why it is not used. Raises KernelsMissing."""
    fastest = next(variant for variant in VARIANTS if _why_not(variant) is None)
    for left_out in VARIANTS[VARIANTS.index(best_variant()) : VARIANTS.index(fastest)]:
        log.warning("CPU kernels %s: %s; %s is used instead", left_out, _why_not(left_out), fastest)
    return fastest
