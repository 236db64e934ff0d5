"""Picks the Ops for a device: compiled C++ on a CPU, Triton on CUDA; without batch invariance, torch's products.
On a CPU, torch then computes all operations.
"""

import torch

from kernels.cpu.library import load
from kernels.cpu.ops import CpuOps
from kernels.interface import Ops
from kernels.torch_ops import TorchOps


def ops_for(
    device: torch.device,
    batch_invariant: bool,
    num_threads: int,
    quantization: str | None = None,
    cpu_kernels: str | None = None,
) -> Ops:
    """Returns the Ops for a device. Without `batch_invariant`, torch's products; on a CPU, torch's kernels only.

    `num_threads`: of the compiled CPU kernels. `quantization`: int8, on CUDA also fp8; needs batch_invariant.
    `cpu_kernels`: the variant of the compiled kernels (None: the fastest); needs batch_invariant and a CPU.

    Raises KernelsMissing if the compiled kernels are needed but were not built, VariantRefused for a variant that this
    machine cannot run.
    """
    assert quantization is None or batch_invariant
    assert cpu_kernels is None or (batch_invariant and device.type == "cpu")
    if device.type == "cuda":
        from kernels.gpu.card import card_of
        from kernels.gpu.ops import TritonOps  # Triton may be missing on a machine without a GPU

        return TritonOps(batch_invariant, quantization, card_of(device))
    assert quantization in (None, "int8")
    return CpuOps(load(cpu_kernels), num_threads, quantization == "int8") if batch_invariant else TorchOps()
