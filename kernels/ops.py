"""Which kernels a model runs on: compiled ones on a CPU, Triton on a GPU, torch's products where speed goes first."""

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
    """`num_threads`: of the compiled kernels. `quantization`: int8, or on CUDA fp8, of batch-invariant kernels only.
    `cpu_kernels`: the variant of the compiled kernels, where these are used; None: the fastest.

    Raises KernelsMissing where the compiled kernels are needed and were not built, VariantRefused for a variant that
    this machine does not run.
    """
    assert quantization is None or batch_invariant
    assert cpu_kernels is None or (batch_invariant and device.type == "cpu")
    if device.type == "cuda":
        from kernels.gpu.ops import TritonOps  # a machine without a GPU need not have Triton

        return TritonOps(batch_invariant, quantization)
    assert quantization in (None, "int8")
    return CpuOps(load(cpu_kernels), num_threads, quantization == "int8") if batch_invariant else TorchOps()
