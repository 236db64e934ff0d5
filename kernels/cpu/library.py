"""Loads the compiled kernel module for this CPU: the fastest built variant that runs here, or a named one.

A variant is one build of the kernels for one instruction set (VARIANTS); its module is `kernels.cpu._<variant>`.
A variant is imported only if the CPU has its instructions, because the import itself could raise SIGILL.
"""

import importlib
import logging
from functools import cache
from typing import Protocol, cast

from kernels.cpu.self_check import products_are_exact

log = logging.getLogger(__name__)


class KernelsMissing(ImportError):
    """The compiled kernels cannot be imported, usually because the package was installed without a C++ compiler."""


class VariantRefused(Exception):
    """The requested variant was not built, or this machine cannot run it.

    The message names it, the reason and the runnable variants.
    """


class Library(Protocol):
    """The functions of a compiled module (native/module.cpp).

    Tensors are passed as addresses. An element type is "f" (float32), "b" (bfloat16) or "h" (float16).
    """

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
        bias: int, out: int,
    ) -> None: ...  # fmt: skip
    def norm(
        self, type_: str, x: int, x_stride: int, weight: int, bias: int, size: int, groups: int, weight_stride: int,
        eps: float, centred: bool, rows: int, out: int, out_stride: int,
    ) -> None: ...  # fmt: skip
    def add_norm(
        self, type_: str, x: int, x_stride: int, residual: int, factor: float, weight: int, bias: int, size: int,
        eps: float, centred: bool, rows: int, out: int, total: int,
    ) -> None: ...  # fmt: skip
    def activate(
        self, type_: str, x: int, kind: int, gated: bool, alpha: float, limit: float, rows: int, size: int, out: int
    ) -> None: ...  # fmt: skip
    def route(
        self, logits: int, tokens: int, experts: int, top_k: int, sigmoid: bool, renormalised: bool, groups: int,
        kept_groups: int, scale: float, correction: int, ids: int, weights: int,
    ) -> None: ...  # fmt: skip
    def mix(
        self, type_: str, x: int, tokens: int, top_k: int, ids: int, weights: int, experts: int, inner: int, down: int,
        inner_bias: int, down_bias: int, kind: int, gated: bool, alpha: float, limit: float, adds: bool, out: int,
    ) -> None: ...  # fmt: skip
    def mixture_bytes(self, type_: str, pairs: int, k: int, inner: int, size: int) -> int: ...
    def rope_and_write(
        self, type_: str, qkv: int, tokens: int, heads: int, query_norm: int, key_norm: int, eps: float,
        query_table: int, key_table: int, rotary: int, positions: int, slots: int, cache: int, kv_heads: int,
        head_dim: int, block_size: int, query: int,
    ) -> None: ...  # fmt: skip
    def paged_attention(
        self, type_: str, query: int, cache: int, kv_heads: int, head_dim: int, block_size: int,
        tables: int, table_stride: int, starts: int, lens: int, requests: int, heads: int, scale: float, window: int,
        soft_cap: float, sinks: int, out: int,
    ) -> None: ...  # fmt: skip
    def run(
        self, type_: str, operations: int, count: int, tokens: int, block_size: int, positions: int, groups: int,
        table_stride: int, starts: int, lens: int, requests: int, logits_indices: int, num_logits: int,
        hidden: int, hidden_size: int, out: int,
    ) -> None: ...  # fmt: skip
    def draw(
        self, logits: int, raw: int, rows: int, vocab: int, draws: int, ids: int, healthy: int
    ) -> None: ...  # fmt: skip
    def soft_cap(self, x: int, rows: int, size: int, cap: float) -> None: ...
    def apply_bitmask(self, logits: int, vocab: int, masks: int, words: int, rows: int, count: int) -> None: ...


# Fastest first. A machine that can run one variant can run all later ones.
VARIANTS = ("amx", "avx512bf16", "avx2", "portable")


def load(variant: str | None = None) -> Library:
    """Returns the module of the named variant, or of the fastest one that this machine can run.

    `variant`: one of VARIANTS. Raises KernelsMissing if none was built, VariantRefused if the named one was not built
    or cannot run here. Logs a warning if a faster one is left out.
    """
    if variant is None:
        return _module(_fastest())
    if reason := _why_not(variant):
        raise VariantRefused(f"{variant}: {reason}; this machine runs {', '.join(runnable_variants())}")
    return _module(variant)


def runnable_variants() -> list[str]:
    """Returns the variants that were built and have their instructions here; "amx" only if its self-check passes.

    Fastest first. Raises KernelsMissing.
    """
    return [variant for variant in VARIANTS if _why_not(variant) is None]


def best_variant() -> str:
    """Returns the fastest variant that this machine has the instructions for, even if it was not built.

    Raises KernelsMissing if the variant "portable" was not built.
    """
    try:
        return _module("portable").best_variant().removeprefix("_")
    except ImportError as error:
        raise KernelsMissing(
            "tandem was installed without its compiled CPU kernels (is there a C++ compiler?)"
        ) from error


def _module(variant: str) -> Library:
    return cast(Library, importlib.import_module(f"kernels.cpu._{variant}"))


def _why_not(variant: str) -> str | None:
    """Returns why this machine cannot run a variant; None if it can. Raises KernelsMissing."""
    if VARIANTS.index(variant) < VARIANTS.index(best_variant()):
        return "this machine does not offer its instructions"
    try:
        library = _module(variant)
    except ImportError:
        return "the compiler did not build it"
    if variant == "amx" and not _is_exact(library):  # type: ignore[arg-type]  # modules have a hash
        return "it computes wrongly on this machine"
    return None


# Once for each module: a process checks its kernels when it loads them first, not for each model.
_is_exact = cache(products_are_exact)


def _fastest() -> str:
    """Returns the fastest runnable variant; logs why each faster one is not used. Raises KernelsMissing."""
    fastest = next(variant for variant in VARIANTS if _why_not(variant) is None)
    for left_out in VARIANTS[VARIANTS.index(best_variant()) : VARIANTS.index(fastest)]:
        log.warning("CPU kernels %s: %s; %s is used instead", left_out, _why_not(left_out), fastest)
    return fastest
