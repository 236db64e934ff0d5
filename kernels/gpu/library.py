"""Products of many rows by torch's library (cuBLASLt on a GPU), for weights with which it gives linear.py's bits.

Whether it does for any number of rows is measured once for a card (`python -m loadtest.gpu --only "the bits of"`). The
card's table (tile_table.py) then lists the weights, each with the number of rows from which on the library is faster.
No table, no library. At load each listed shape is compared once more, on a few row counts, because the answer belongs
to a version of cuBLAS. docs/decisions/0020-gpu-products.md
"""

import functools
import importlib.metadata
import logging
import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.gpu import linear, tile_table
from kernels.gpu.card import Card
from kernels.gpu.linear_tiling import Launches

log = logging.getLogger(__name__)
NEVER = 2**62  # rows
# Almost without a workspace (1 KiB) cuBLAS cannot divide the sums of K among programs. Read at its first use.
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}
DISTRIBUTIONS = ("nvidia-cublas", "nvidia-cublas-cu12")


def prepare() -> None:
    """Makes torch take cuBLASLt, with float32 sums that are not divided. Called before the first product on a GPU."""
    os.environ.update(ENVIRONMENT)
    if torch.cuda.is_available():
        torch.backends.cuda.preferred_blas_library("cublaslt")
        not_rounded_nor_divided: Any = (False, False)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = not_rounded_nor_divided
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = not_rounded_nor_divided


def used_by(card: Card) -> str:
    """Returns what results depend on besides the kernels, and prepares it: cuBLAS and its version if the card's table
    lists weights, else ""."""
    if not tile_table.library(card):
        return ""
    prepare()
    return version()


def library_rows(weight: Tensor, launches: Launches, card: Card) -> int:
    """Returns the number of rows from which on `weight` [n, k] is multiplied by `product`; NEVER if the card's table
    does not list it, or the bits differ here."""
    n, k = weight.shape
    rows = tile_table.library(card).get(tile_table.key_of(n, k, weight.dtype, weight.dtype))
    if rows is None:
        return NEVER
    if not _verified(n, k, weight.dtype, weight.device, rows, weight, launches):
        log.warning("torch's product with a weight [%d, %d] gives other bits than before: it is not used", n, k)
        return NEVER
    return rows


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Returns x [rows, k] @ weight [n, k].T in x's dtype."""
    return F.linear(x, weight)


_results: dict[tuple[int, int, torch.dtype, torch.device], bool] = {}


def _verified(
    n: int, k: int, dtype: torch.dtype, device: torch.device, rows: int, weight: Tensor, launches: Launches
) -> bool:
    """Returns whether both products have the same bits for a few row counts from `rows` on. Once for a shape."""
    shape = (n, k, dtype, device)
    if shape not in _results:
        source = torch.Generator(device).manual_seed(0)
        x = torch.randn(4 * rows + 1, k, dtype=dtype, device=device, generator=source)
        counts = (rows, rows + 1, 2 * rows - 1, 4 * rows + 1)
        _results[shape] = all(
            torch.equal(product(x[:count], weight), linear.product(x[:count], weight, None, None, launches, dtype))
            for count in counts
        )
    return _results[shape]


@functools.cache
def version() -> str:
    """Returns cuBLAS's version, or that of the CUDA that torch was built with if cuBLAS is no package here."""
    for name in DISTRIBUTIONS:
        try:
            return f"cublas-{importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"cuda-{torch.version.cuda}"
